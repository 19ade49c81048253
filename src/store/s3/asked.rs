//! Who was asked for credentials and gave no answer. The AWS SDK says of some of them only that
//! there is no token: that nobody could be reached to renew it, it tells its log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

use super::fault::chain;

/// Of each server that was asked and gave no answer, by its URL: why.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked(Arc<Mutex<BTreeMap<String, String>>>);

impl Asked {
    /// A client that does what `client` does, and notes who gives no answer.
    pub(super) fn through(&self, client: SharedHttpClient) -> SharedHttpClient {
        SharedHttpClient::new(Noting {
            client,
            asked: self.clone(),
        })
    }

    /// A server that gave no answer, and why, in words.
    pub(super) fn in_vain(&self) -> Option<String> {
        let noted = self.lock();
        let (server, why) = noted.first_key_value()?;
        Some(format!("{server}: {why}"))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client, or a connection of one.
struct Noting<T> {
    client: T,
    asked: Asked,
}

impl<T> fmt::Debug for Noting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Noting")
    }
}

impl HttpClient for Noting<SharedHttpClient> {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(Noting {
            client: self.client.http_connector(settings, components),
            asked: self.asked.clone(),
        })
    }
}

impl HttpConnector for Noting<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        // Scheme and authority: the rest may hold what is nobody's business.
        let server = request.uri().splitn(4, '/').take(3);
        let server = server.collect::<Vec<_>>().join("/");
        let server = server.split('?').next().unwrap_or_default().to_owned();
        let asked = self.asked.clone();
        // Until it answers: whoever waits may give up meanwhile.
        let silent = "it does not answer";
        asked.lock().insert(server.clone(), silent.to_owned());
        let answer = self.client.call(request);
        HttpConnectorFuture::new(async move {
            let answer = answer.await;
            let why = match &answer {
                Ok(answer) if answer.status().is_server_error() => {
                    Some(format!("it answered {}", answer.status().as_u16()))
                }
                Ok(_) => None,
                Err(error) => Some(chain(error)),
            };
            match why {
                Some(why) => asked.lock().insert(server, why),
                None => asked.lock().remove(&server),
            };
            answer
        })
    }
}
