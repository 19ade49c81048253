//! Many operations at once: bounded in number, and with it in memory.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Calls `act` on every item, on at most `at_once` items at a time. Items are taken from `items`
/// one by one, when there is somebody to work on them, so that they may be large. After an error
/// no further item is taken, and the error comes back when what was under way has ended.
///
/// # Errors
/// The first that `act` gave.
pub fn for_each<T, E>(
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    at_once: usize,
    act: impl Fn(T) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    T: Send,
    E: Send,
{
    in_order(items, at_once, act, |()| Ok(()))
}

/// Calls `act` like [`for_each`], and gives what came out to `take`, on this thread, in the order
/// of the items. At most `2 * at_once` items are taken and not yet given to `take`.
///
/// # Errors
/// The first that `act` or `take` gave.
pub fn in_order<T, R, E>(
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    at_once: usize,
    act: impl Fn(T) -> Result<R, E> + Sync,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E>
where
    T: Send,
    R: Send,
    E: Send,
{
    let at_once = at_once.max(1);
    let items = Mutex::new(items.into_iter().enumerate());
    let line = Line {
        state: Mutex::new(State {
            done: BTreeMap::new(),
            started: 0,
            taken: 0,
            working: at_once,
            error: None,
            stopped: false,
        }),
        changed: Condvar::new(),
        window: 2 * at_once,
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                let _leave = Leave(&line);
                loop {
                    // Held while waiting for room, so that items are started in order.
                    let mut items = items.lock().unwrap_or_else(PoisonError::into_inner);
                    if !line.room() {
                        return;
                    }
                    let Some((at, item)) = items.next() else {
                        return;
                    };
                    drop(items);
                    line.put(at, act(item));
                }
            });
        }
        // Also when `take` panics, or the others would wait for ever.
        let _stop = Stop(&line);
        while let Some(done) = line.next() {
            if let Err(error) = take(done) {
                line.fail(error);
            }
        }
    });
    let state = line.state.into_inner();
    match state.unwrap_or_else(PoisonError::into_inner).error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A number of places, of which everybody who does something large takes one.
#[derive(Debug)]
pub struct Slots {
    free: Mutex<usize>,
    changed: Condvar,
}

/// A place among [`Slots`], free again when this is dropped.
#[derive(Debug)]
pub struct Slot<'a>(&'a Slots);

impl Slots {
    /// So many places.
    pub fn new(places: usize) -> Self {
        Self {
            free: Mutex::new(places),
            changed: Condvar::new(),
        }
    }

    /// Waits for a place.
    pub fn take(&self) -> Slot<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.changed.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Slot(self)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}

/// What workers and the taker share.
struct Line<R, E> {
    state: Mutex<State<R, E>>,
    changed: Condvar,
    window: usize,
}

struct State<R, E> {
    /// What waits to be taken, by the number of its item.
    done: BTreeMap<usize, R>,
    /// Items that workers were given.
    started: usize,
    /// The number of the item whose result is taken next.
    taken: usize,
    /// Workers that may still bring something.
    working: usize,
    error: Option<E>,
    stopped: bool,
}

impl<R, E> Line<R, E> {
    fn lock(&self) -> MutexGuard<'_, State<R, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State<R, E>>,
        condition: impl FnMut(&mut State<R, E>) -> bool,
    ) -> MutexGuard<'a, State<R, E>> {
        self.changed
            .wait_while(state, condition)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, at: usize, done: Result<R, E>) {
        match done {
            Ok(done) => {
                self.lock().done.insert(at, done);
                self.changed.notify_all();
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&self, error: E) {
        let mut state = self.lock();
        state.error.get_or_insert(error);
        state.stopped = true;
        self.changed.notify_all();
    }

    /// Waits until another item may be started; `false`: none may.
    fn room(&self) -> bool {
        let full = |state: &mut State<R, E>| state.started - state.taken >= self.window;
        let mut state = self.wait(self.lock(), |state| !state.stopped && full(state));
        state.started += 1;
        !state.stopped
    }

    /// Waits for the result of the next item; `None`: there is none, or something failed.
    fn next(&self) -> Option<R> {
        let mut state = self.wait(self.lock(), |state| {
            !state.stopped && state.working > 0 && !state.done.contains_key(&state.taken)
        });
        if state.stopped {
            return None;
        }
        let taken = state.taken;
        let done = state.done.remove(&taken)?;
        state.taken += 1;
        self.changed.notify_all();
        Some(done)
    }
}

/// A worker that is at work until this is dropped.
struct Leave<'a, R, E>(&'a Line<R, E>);

impl<R, E> Drop for Leave<'_, R, E> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working -= 1;
        // Its result is missing for ever.
        state.stopped |= thread::panicking();
        self.0.changed.notify_all();
    }
}

/// Stops the workers when it is dropped by a panic.
struct Stop<'a, R, E>(&'a Line<R, E>);

impl<R, E> Drop for Stop<'_, R, E> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().stopped = true;
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn keeps_order_and_bounds() {
        let (under_way, most, taken) = (
            AtomicUsize::new(0),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        let items = (0..200).inspect(|at| {
            // Items on their way: those in work or waiting, and the one that is being given.
            assert!(at - taken.load(Ordering::SeqCst) <= 2 * 4, "{at}");
        });
        let mut seen = Vec::new();
        let act = |at: usize| {
            let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            // The first of every ten is the slowest.
            thread::sleep(Duration::from_micros(if at.is_multiple_of(10) {
                3000
            } else {
                50
            }));
            under_way.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ()>(at)
        };
        in_order(items, 4, act, |at| {
            seen.push(at);
            taken.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(most.into_inner() <= 4);
        assert_eq!(for_each(0..0, 4, |_: u8| Err(())), Ok(()));
    }

    #[test]
    fn stops_at_an_error() {
        let started = AtomicUsize::new(0);
        let act = |at: usize| {
            started.fetch_add(1, Ordering::SeqCst);
            if at == 3 { Err("third") } else { Ok(()) }
        };
        assert_eq!(for_each(0..1_000_000, 4, act), Err("third"));
        assert!(started.into_inner() < 100);
        let failing = |at: usize| if at == 3 { Err("taken") } else { Ok(()) };
        assert_eq!(in_order(0..1_000_000, 4, Ok, failing), Err("taken"));
    }

    #[test]
    fn panics_end_it() {
        let worker = || {
            for_each(0..100, 4, |at| {
                if at == 5 {
                    panic!("act")
                } else {
                    Ok::<_, ()>(())
                }
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(worker)).is_err());
        let taker = || {
            in_order(0..100, 4, Ok::<_, ()>, |at| {
                if at == 5 { panic!("take") } else { Ok(()) }
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(taker)).is_err());
        let source = (0..100).inspect(|at| assert!(*at < 5, "source"));
        let items = || for_each(source, 4, |_| Ok::<_, ()>(()));
        assert!(catch_unwind(AssertUnwindSafe(items)).is_err());
    }
}
