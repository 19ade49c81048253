//! Trying again: for how long, and how soon.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::fault::{Again, Fault};
use crate::store::{Counters, Reason};

/// The first pause is up to this long, every further one up to twice as long as the one before.
const FIRST: Duration = Duration::from_millis(200);
/// But not longer than this.
const LONGEST: Duration = Duration::from_secs(8);
/// How often whoever waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Tries of what succeeds soon or never, and of a server that never answered.
const FEW: u32 = 3;

/// How operations are tried again.
#[derive(Debug)]
pub(super) struct Tries {
    /// For how long after the first failure.
    patience: Duration,
    /// Whether the server ever answered: a wrong address is told soon, an outage waited for.
    reached: AtomicBool,
    /// Set from outside: then nothing is waited for.
    stop: Arc<AtomicBool>,
}

impl Tries {
    pub(super) fn new(patience: Duration, stop: Arc<AtomicBool>) -> Self {
        Self {
            patience,
            stop,
            reached: AtomicBool::new(false),
        }
    }

    /// Calls `attempt` until it succeeds or there is no more point in it.
    pub(super) async fn run<T>(
        &self,
        counters: &Counters,
        mut attempt: impl AsyncFnMut() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut failed_first = None;
        let mut tried = 0;
        loop {
            counters.request();
            let answer = tokio::select! {
                answer = attempt() => answer,
                () = self.stopped() => return Err(Fault::new(Reason::Stopped, Again::Never)),
            };
            let fault = match answer {
                Ok(done) => {
                    self.reached.store(true, Ordering::Relaxed);
                    return Ok(done);
                }
                Err(fault) => fault,
            };
            tried += 1;
            if fault.answered {
                self.reached.store(true, Ordering::Relaxed);
            }
            let few = match fault.again {
                Again::Never | Again::AskCredentials => return Err(fault),
                Again::Soon => true,
                Again::Later => !self.reached.load(Ordering::Relaxed),
            };
            let pause = pause(tried);
            let failed_first = *failed_first.get_or_insert_with(Instant::now);
            if (few && tried >= FEW) || failed_first.elapsed() + pause > self.patience {
                return Err(fault);
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => counters.retry(),
                () = self.stopped() => return Err(Fault::new(Reason::Stopped, Again::Never)),
            }
        }
    }

    /// Whether it is to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until it is to stop.
    async fn stopped(&self) {
        while !self.is_stopped() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Full jitter: any time up to a limit that doubles, so that many clients don't come back at once.
fn pause(tried: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1 << (tried - 1).min(16));
    let limit = doubled.min(LONGEST);
    // Every hasher of this kind has random keys of its own.
    let random = RandomState::new().build_hasher().finish();
    let part = f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    limit.mul_f64(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_and_bounded() {
        for tried in 1..40 {
            let limit = FIRST
                .saturating_mul(1 << (tried - 1_u32).min(16))
                .min(LONGEST);
            let pauses: Vec<_> = (0..200).map(|_| pause(tried)).collect();
            assert!(pauses.iter().all(|pause| *pause <= limit));
            assert!(pauses.iter().any(|pause| *pause > limit / 2));
            assert!(pauses.iter().any(|pause| *pause < limit / 2));
        }
    }

    #[test]
    fn gives_up_soon_on_what_was_never_reached() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let runtime = runtime.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let tries = Tries::new(Duration::from_hours(1), Arc::clone(&stop));
        let counters = Counters::default();
        let nobody = async || {
            let fault = Fault::new(Reason::Broken(String::new()), Again::Later);
            Err::<(), _>(Fault {
                answered: false,
                ..fault
            })
        };
        runtime.block_on(tries.run(&counters, nobody)).unwrap_err();
        assert_eq!(
            (counters.traffic().requests, counters.traffic().retries),
            (3, 2)
        );
        // A server that is there and silent may wait for another one, and is waited for.
        let mut left = 5;
        let outage = async || {
            left -= 1;
            match left {
                0 => Ok(()),
                4 => Err(Fault::silent(Duration::from_secs(1))),
                _ => Err(Fault::new(Reason::Broken(String::new()), Again::Later)),
            }
        };
        runtime.block_on(tries.run(&counters, outage)).unwrap();
        assert_eq!(counters.traffic().requests, 8);
        let never = async || Err::<(), _>(Fault::new(Reason::NotFound, Again::Never));
        runtime.block_on(tries.run(&counters, never)).unwrap_err();
        assert_eq!(counters.traffic().requests, 9);
        // Whoever is to stop waits neither for an outage to end nor for an answer.
        let outage = async || {
            stop.store(true, Ordering::Relaxed);
            Err::<(), _>(Fault::new(Reason::Broken(String::new()), Again::Later))
        };
        let frozen = async || {
            stop.store(true, Ordering::Relaxed);
            std::future::pending::<Result<(), _>>().await
        };
        let stopped = runtime.block_on(tries.run(&counters, outage)).unwrap_err();
        assert!(matches!(stopped.reason, Reason::Stopped), "{stopped:?}");
        stop.store(false, Ordering::Relaxed);
        let stopped = runtime.block_on(tries.run(&counters, frozen)).unwrap_err();
        assert!(matches!(stopped.reason, Reason::Stopped), "{stopped:?}");
        assert_eq!(counters.traffic().requests, 11);
    }
}
