//! An S3 server in this process, which remembers what it was asked.
//!
//! `s3s-fs` checks signatures and checksums and honours conditional writes. It can't hold `x`
//! beside `x/y`, has no atomic conditions, and keeps an object whose checksum was wrong: tests of
//! these need other servers.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use casepack::store::{Access, AccessKeys, S3Settings};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::host::SingleDomain;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The only bucket.
pub(crate) const BUCKET: &str = "bucket";
const KEY_ID: &str = "AKTEST";
const SECRET: &str = "a secret of tests";

/// A server on a port of its own, over a directory that goes away with it.
pub(crate) struct S3Server {
    endpoint: String,
    root: tempfile::TempDir,
    log: Log,
    bodies: Arc<Bodies>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

type Log = Arc<Mutex<Vec<Request>>>;

/// Bytes of requests that were announced and not answered yet, and the most that ever were.
#[derive(Debug, Default)]
struct Bodies {
    now: AtomicU64,
    most: AtomicU64,
}

/// What kind of server it is.
#[derive(Default)]
struct Nature {
    tls: Option<TlsAcceptor>,
    public: bool,
    hosts: bool,
}

/// Everybody may read, and whoever signs may do everything.
struct PublicReads;

impl S3Access for PublicReads {
    fn check<'a, 'b, 'c, 'r>(
        &'a self,
        cx: &'b mut S3AccessContext<'c>,
    ) -> Pin<Box<dyn Future<Output = S3Result<()>> + Send + 'r>>
    where
        'a: 'r,
        'b: 'r,
        'c: 'r,
    {
        let may = cx.credentials().is_some() || cx.method() == hyper::Method::GET;
        Box::pin(async move {
            if may {
                Ok(())
            } else {
                Err(s3s::s3_error!(AccessDenied, "only reading is public"))
            }
        })
    }
}

/// What the server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Below the bucket, as it came: percent-encoded.
    pub(crate) key: String,
    /// What follows the `?`.
    pub(crate) query: String,
    /// The header `Range`.
    pub(crate) range: Option<String>,
    /// The header `Host`.
    pub(crate) host: Option<String>,
    /// Whether somebody has signed it.
    pub(crate) signed: bool,
    /// Bytes of the request's body, as it announced them.
    pub(crate) sent: u64,
    /// Bytes of the answer's body, as it announced them.
    pub(crate) received: u64,
    pub(crate) status: u16,
}

impl S3Server {
    /// Starts one with an empty bucket.
    pub(crate) fn start() -> Self {
        Self::start_with(Nature::default())
    }

    /// Starts one that anybody may read.
    pub(crate) fn start_public() -> Self {
        Self::start_with(Nature {
            public: true,
            ..Nature::default()
        })
    }

    /// Starts one that has the bucket in the host's name: `bucket.localhost`.
    pub(crate) fn start_with_hosts() -> Self {
        Self::start_with(Nature {
            hosts: true,
            ..Nature::default()
        })
    }

    /// Starts one that speaks HTTPS; the certificate's authority is in the file that is returned.
    /// `None`: there is no `openssl` to make certificates.
    pub(crate) fn start_tls() -> Option<(Self, tempfile::NamedTempFile)> {
        let (acceptor, authority) = certificates()?;
        let server = Self::start_with(Nature {
            tls: Some(acceptor),
            ..Nature::default()
        });
        Some((server, authority))
    }

    fn start_with(nature: Nature) -> Self {
        let scheme = if nature.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("it can be");
        let root = tempfile::tempdir().expect("a directory for the server");
        std::fs::create_dir(root.path().join(BUCKET)).expect("it is ours");
        let service = {
            let files = s3s_fs::FileSystem::new(root.path()).expect("the directory is there");
            let mut builder = S3ServiceBuilder::new(files);
            builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
            if nature.public {
                builder.set_access(PublicReads);
            }
            if nature.hosts {
                let host = SingleDomain::new(&format!("localhost:{}", address.port()));
                builder.set_host(host.expect("it is a domain"));
            }
            builder.build()
        };
        let (log, bodies) = (Log::default(), Arc::<Bodies>::default());
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn({
            let (log, bodies) = (Arc::clone(&log), Arc::clone(&bodies));
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(async {
                    let listener = TcpListener::from_std(listener).expect("a runtime");
                    tokio::select! {
                        () = serve(listener, nature.tls, service, (log, bodies)) => {}
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_background();
            }
        });
        let endpoint = if nature.hosts {
            format!("http://localhost:{}", address.port())
        } else {
            format!("{scheme}://{address}")
        };
        Self {
            endpoint,
            root,
            log,
            bodies,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Its URL.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where the objects of the bucket are as files.
    pub(crate) fn files(&self) -> PathBuf {
        self.root.path().join(BUCKET)
    }

    /// How to reach it.
    pub(crate) fn settings(&self) -> S3Settings {
        S3Settings {
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            access: Access::Keys(AccessKeys {
                id: KEY_ID.to_owned(),
                secret: SECRET.to_owned(),
                session: None,
            }),
            ..S3Settings::default()
        }
    }

    /// What a command needs in its environment to reach it.
    pub(crate) fn env(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL_S3", self.endpoint.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }

    /// The most bytes of requests that it had at once: what clients had to have in hand.
    pub(crate) fn most_bytes_at_once(&self) -> u64 {
        self.bodies.most.load(Ordering::SeqCst)
    }

    /// What it was asked since the last call.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended already.
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// What is written down of requests.
type Notes = (Log, Arc<Bodies>);

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, service: S3Service, notes: Notes) {
    while let Ok((socket, _)) = listener.accept().await {
        socket.set_nodelay(true).ok();
        let (service, notes) = (service.clone(), notes.clone());
        // A client that goes away, or does not trust us, is none of our business.
        match tls.clone() {
            None => drop(tokio::spawn(answer(socket, service, notes))),
            Some(tls) => drop(tokio::spawn(async move {
                if let Ok(socket) = tls.accept(socket).await {
                    answer(socket, service, notes).await;
                }
            })),
        }
    }
}

async fn answer(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S3Service,
    notes: Notes,
) {
    let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (service, (log, bodies)) = (service.clone(), notes.clone());
        async move {
            let mut seen = see(&request);
            let now = bodies.now.fetch_add(seen.sent, Ordering::SeqCst) + seen.sent;
            bodies.most.fetch_max(now, Ordering::SeqCst);
            let answer = service.call(request.map(Body::from)).await;
            let answer = answer.unwrap_or_else(|error| {
                let mut failed = hyper::Response::new(Body::from(format!("{error:?}")));
                *failed.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
                failed
            });
            bodies.now.fetch_sub(seen.sent, Ordering::SeqCst);
            seen.received = length(answer.headers());
            seen.status = answer.status().as_u16();
            log.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(seen);
            Ok::<_, Infallible>(answer)
        }
    });
    auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(socket), answer)
        .await
        .ok();
}

/// What a server of 127.0.0.1 needs, and the authority that vouches for it.
fn certificates() -> Option<(TlsAcceptor, tempfile::NamedTempFile)> {
    let dir = tempfile::tempdir().expect("a directory for certificates");
    let openssl = |args: &str| {
        let done = Command::new("openssl")
            .current_dir(&dir)
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '))
            .args(args.split(' '))
            .output();
        done.is_ok_and(|done| done.status.success())
    };
    let made = openssl("-subj /CN=tests -keyout ca.key -out ca.pem")
        && openssl(
            "-subj /CN=server -CA ca.pem -CAkey ca.key -keyout key.pem -out cert.pem \
             -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE",
        );
    if !made {
        return None;
    }
    let chain = CertificateDer::pem_file_iter(dir.path().join("cert.pem"));
    let chain = chain.and_then(Iterator::collect).expect("openssl wrote it");
    let key = PrivateKeyDer::from_pem_file(dir.path().join("key.pem")).expect("openssl wrote it");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they belong together");
    let authority = tempfile::NamedTempFile::new().expect("a file for the authority");
    std::fs::copy(dir.path().join("ca.pem"), authority.path()).expect("openssl wrote it");
    Some((TlsAcceptor::from(Arc::new(config)), authority))
}

fn see(request: &hyper::Request<hyper::body::Incoming>) -> Request {
    let path = request.uri().path().trim_start_matches('/');
    let header = |name: &str| {
        let value = request.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    Request {
        method: request.method().to_string(),
        key: path
            .strip_prefix(BUCKET)
            .unwrap_or(path)
            .trim_start_matches('/')
            .to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        range: header("range"),
        host: header("host"),
        signed: header("authorization").is_some(),
        sent: length(request.headers()),
        received: 0,
        status: 0,
    }
}

fn length(headers: &hyper::HeaderMap) -> u64 {
    let length = headers.get("content-length");
    length
        .and_then(|length| length.to_str().ok()?.parse().ok())
        .unwrap_or(0)
}
