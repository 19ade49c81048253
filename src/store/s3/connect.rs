//! From settings to a client of the AWS SDK.

use std::fmt;
use std::time::Duration;

use aws_config::environment::region::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::profile::region::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{
    Credentials, ProvideCredentials as _, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, SharedHttpClient,
};
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use aws_types::os_shim_internal::{Env, Fs};
use aws_types::service_config::ServiceConfigKey;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::asked::Asked;
use super::settings::{Access, S3Settings};
use crate::store::Reason;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long getting credentials may take: as long as the SDK itself waits for them.
const CREDENTIALS: Duration = Duration::from_secs(5);
/// What a region is called where nobody says it: most servers that are not AWS take it.
const REGION: &str = "us-east-1";

/// A client, and what is told of it.
pub(super) struct Connection {
    pub(super) client: Client,
    /// The server's URL, when it is not AWS.
    pub(super) endpoint: Option<String>,
    pub(super) region: String,
    profile: Option<Profile>,
    /// The one that the environment names, where nobody asked for another.
    usual_profile: Option<Profile>,
    profile_file: String,
    /// Who was asked for credentials.
    asked: Asked,
    config: SdkConfig,
}

/// A profile that was asked for, in the AWS configuration files.
struct Profile {
    name: String,
    config: ProviderConfig,
}

impl Profile {
    fn credentials(&self) -> ProfileFileCredentialsProvider {
        let provider = ProfileFileCredentialsProvider::builder().configure(&self.config);
        provider.profile_name(&self.name).build()
    }

    /// The profile at the end of the chain of `source_profile`s, the one that a login is for; and
    /// whether it has one.
    #[expect(
        clippy::default_trait_access,
        reason = "the type has no name outside of a crate that is none of ours"
    )]
    async fn source(&self) -> (String, bool) {
        let (mut name, mut login) = (self.name.clone(), false);
        let (fs, env) = (Fs::real(), Env::real());
        if let Ok(profiles) = aws_config::profile::load(&fs, &env, &Default::default(), None).await
        {
            // One that leads back to itself ends as well.
            for _ in 0..16 {
                let Some(profile) = profiles.get_profile(&name) else {
                    break;
                };
                let keys = ["sso_session", "sso_start_url"];
                login = keys.iter().any(|key| profile.get(key).is_some());
                match profile.get("source_profile") {
                    Some(next) if next != name => next.clone_into(&mut name),
                    _ => break,
                }
            }
        }
        (name, login)
    }
}

/// Without what the SDK shows of credentials.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Reads the AWS configuration; sends nothing to the server.
    pub(super) async fn new(settings: &S3Settings) -> Result<Self, Reason> {
        let mut profile = ProfileFileRegionProvider::builder();
        if let Some(name) = &settings.profile {
            profile = profile.profile_name(name);
        }
        let region = RegionProviderChain::first_try(settings.region.clone().map(Region::new))
            .or_else(EnvironmentVariableRegionProvider::new())
            .or_else(profile.build())
            .region()
            .await;
        let http_client = http_client(settings)?;
        let asked = Asked::default();
        let noting = asked.through(http_client.clone());
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(noting.clone())
            .region(region.clone());
        if let Some(profile) = &settings.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(endpoint) = &settings.endpoint {
            loader = loader.endpoint_url(checked_endpoint(endpoint)?);
        }
        // As with the AWS tools, who names a profile means it, whatever the environment has.
        let named = settings.profile.clone();
        let named = named.filter(|_| settings.access == Access::Chain);
        let of_chain = |name| Profile {
            name,
            config: ProviderConfig::default()
                .with_http_client(noting.clone())
                .with_region(region.clone()),
        };
        let profile = named.map(of_chain);
        let usual_profile = settings.usual_profile.clone();
        let usual_profile = usual_profile.filter(|_| settings.access == Access::Chain);
        let usual_profile = usual_profile.filter(|_| profile.is_none()).map(of_chain);
        loader = match (&settings.access, &profile) {
            (Access::Chain, Some(profile)) => loader.credentials_provider(profile.credentials()),
            (Access::Chain, None) => loader,
            (Access::Anonymous, _) => loader.no_credentials(),
            (Access::Keys(keys), _) => loader.credentials_provider(Credentials::new(
                &keys.id,
                &keys.secret,
                keys.session.clone(),
                None,
                "casepack",
            )),
        };
        let config = loader.load().await;
        let endpoint = settings.endpoint.clone().or_else(|| endpoint(&config));
        if let Some(endpoint) = &endpoint {
            checked_endpoint(endpoint)?;
        }
        // The instance is asked where it is only when that is wanted: elsewhere nobody answers.
        let region = match config.region() {
            Some(region) => region.clone(),
            None if endpoint.is_some() => Region::from_static(REGION),
            None => {
                let instance = ImdsRegionProvider::builder().build().region().await;
                instance.unwrap_or(Region::from_static(REGION))
            }
        };
        let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).build();
        let s3 = aws_sdk_s3::config::Builder::from(&config)
            .region(region.clone())
            .http_client(http_client)
            // Tried again is here, where bodies count too: see `retry`.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .force_path_style(settings.path_style.unwrap_or(endpoint.is_some()))
            // Every write brings the SHA-256 that is known anyway. What the SDK adds on its own,
            // a trailing CRC-32, Garage refuses over http (../spec/s3-servers.md).
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        Ok(Self {
            client: Client::from_conf(s3.build()),
            endpoint,
            region: region.to_string(),
            profile,
            usual_profile,
            profile_file: settings.profile_file.clone(),
            asked,
            config,
        })
    }

    /// Whether what is sent could be read and changed on its way.
    pub(super) fn is_plain(&self) -> bool {
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        endpoint.starts_with("http://")
    }

    /// Why there are no credentials; `None`: there are some, or none are wanted.
    pub(super) async fn why_no_credentials(&self) -> Option<Reason> {
        // The provider that failed does not say twice why, and the whole chain says less than the
        // profile that the environment names.
        let profile = self.profile.as_ref().or(self.usual_profile.as_ref());
        let ask = async {
            if let Some(profile) = profile {
                return profile.credentials().provide_credentials().await.err();
            }
            let provider = self.config.credentials_provider()?;
            provider.provide_credentials().await.err()
        };
        let asked = tokio::time::timeout(CREDENTIALS, ask).await.ok();
        let why = match asked {
            Some(error) => Some(super::fault::chain(&error?)),
            None => None,
        };
        let in_vain = self.asked.in_vain();
        let in_vain = in_vain.filter(|_| {
            let told = why.as_deref();
            // Where nothing is set up, the chain asks the instance, which is not there either.
            told.is_none_or(|why| is_about_reach(why) || is_about_login(why))
        });
        let why = why.or_else(|| in_vain.clone())?;
        Some(if let Some(why) = in_vain {
            let login = match profile {
                Some(profile) => profile.source().await.1,
                None => false,
            };
            let service = if login { SSO } else { OTHERS };
            Reason::NoCredentialService { service, why }
        } else if is_about_login(&why) {
            let profile = match profile {
                Some(profile) => Some(profile.source().await.0),
                None => None,
            };
            Reason::NotLoggedIn { why, profile }
        } else if let Some(profile) = profile {
            let (profile, file) = (profile.name.clone(), self.profile_file.clone());
            Reason::BadProfile { why, profile, file }
        } else {
            Reason::NoCredentials(why)
        })
    }
}

/// What gives credentials for a login.
const SSO: &str = "SSO service, which gives the credentials,";
/// What gives credentials for a role, a container or an instance.
const OTHERS: &str = "service that gives the credentials";

/// Whether what the SDK says of missing credentials is that nobody was there to ask.
fn is_about_reach(why: &str) -> bool {
    ["(Connect)", "connect timeout", "dns error"]
        .iter()
        .any(|words| why.contains(words))
}

/// Whether what the SDK says of missing credentials is about the token of `aws sso login`: there is
/// none in its cache, its time is over, or the service ended it. It tells by its text only.
fn is_about_login(why: &str) -> bool {
    ["SSO token", "/.aws/sso/cache/", "UnauthorizedException"]
        .iter()
        .any(|words| why.contains(words))
}

/// `endpoint_url` of the SDK's own environment variables and profiles.
fn endpoint(config: &SdkConfig) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id("S3")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .ok()?;
    let of_s3 = config
        .service_config()
        .and_then(|config| config.load_config(key));
    of_s3.or_else(|| config.endpoint_url().map(str::to_owned))
}

/// The SDK reports what is no URL late and unclearly.
fn checked_endpoint(text: &str) -> Result<&str, Reason> {
    let rest = ["http://", "https://"]
        .into_iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    let host = rest.unwrap_or("").split('/').next().unwrap_or("");
    let odd = |c: char| c.is_whitespace() || c.is_control() || "?#@\\".contains(c);
    if host.is_empty() || text.contains(odd) {
        return Err(Reason::Settings(format!(
            "the endpoint '{text}' is no URL of a server: write http://HOST:PORT or https://HOST"
        )));
    }
    Ok(text)
}

fn http_client(settings: &S3Settings) -> Result<SharedHttpClient, Reason> {
    let mut trust = TrustStore::default();
    if let Some(path) = &settings.ca_bundle {
        let failed = |why: &str| {
            let path = path.display();
            Reason::Settings(format!("the CA bundle '{path}' can't be used: {why}"))
        };
        let pem = std::fs::read(path).map_err(|error| failed(&error.to_string()))?;
        // What the HTTP client can't read, it panics about.
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| failed(&error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| failed(&error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(failed("it holds no certificate in PEM form"));
        }
        trust.add_pem_certificate(pem);
    }
    let context = TlsContext::builder().with_trust_store(trust).build();
    let context = context.map_err(|error| Reason::Settings(super::fault::chain(&error)))?;
    Ok(aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
        .tls_context(context)
        .build_https())
}
