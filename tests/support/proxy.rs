//! A bad network: stands between client and server and does one wrong thing per connection.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What goes wrong with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is closed as soon as it is open.
    Refuse,
    /// After so many bytes nothing more comes through.
    Stall(Way, usize),
    /// After so many bytes it is closed; a side that is still sending sees a reset.
    Cut(Way, usize),
    /// One byte, the one after so many, comes through as another.
    Flip(Way, usize),
    /// A request is answered by 503, `SlowDown`, without reaching the server.
    SlowDown,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// A proxy on a port of its own.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    /// For the next connections, one each.
    faults: Mutex<VecDeque<Option<Fault>>>,
    /// Faults that took place.
    done: Mutex<Vec<Fault>>,
    /// Requests that never reach the server.
    caught: Mutex<Option<Caught>>,
    stopped: AtomicBool,
}

/// What is done with requests that begin like one.
#[derive(Debug)]
struct Caught {
    request: String,
    /// So many of them still pass.
    pass: usize,
    /// Whether the others are refused; else they have no answer.
    deny: bool,
    /// Told of each that does not pass.
    tell: Sender<()>,
}

/// Refuses a request.
fn deny_it(mut client: TcpStream) -> io::Result<()> {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
                <Error><Code>AccessDenied</Code><Message>Not you.</Message></Error>";
    write!(
        client,
        "HTTP/1.1 403 Forbidden\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )?;
    client.shutdown(Shutdown::Write)?;
    // What the client still sends is taken, or it would see a reset instead of the answer.
    io::copy(&mut client, &mut io::sink()).map(drop)
}

impl Proxy {
    /// Before the server at `endpoint`, `http://ADDRESS:PORT`.
    pub(crate) fn before(endpoint: &str) -> Self {
        let server = endpoint.trim_start_matches("http://");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            server: server.parse().expect("an address"),
            faults: Mutex::default(),
            done: Mutex::default(),
            caught: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for client in listener.incoming() {
                    if shared.stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    let fault = lock(&shared.faults).pop_front().flatten();
                    if let Ok(client) = client {
                        // Whatever goes wrong here is a bad network, too.
                        thread::spawn(move || shared.connect(client, fault).ok());
                    }
                }
            }
        });
        Self { address, shared }
    }

    /// Where clients find it.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next `times` connections have `fault`.
    pub(crate) fn next(&self, times: usize, fault: Fault) {
        lock(&self.shared.faults).extend(std::iter::repeat_n(Some(fault), times));
    }

    /// The next `times` connections, after those that have faults already, have none.
    pub(crate) fn pass(&self, times: usize) {
        lock(&self.shared.faults).extend(std::iter::repeat_n(None, times));
    }

    /// From now on a request that begins like `request`, `METHOD /PATH`, does not reach the server,
    /// and has no answer. What comes back is told of each.
    pub(crate) fn hold(&self, request: &str) -> Receiver<()> {
        self.catch(request, 0, false)
    }

    /// From now on a request that begins like `request` is answered by 403, `AccessDenied`, when
    /// `pass` of them have reached the server. What comes back is told of each.
    pub(crate) fn deny(&self, request: &str, pass: usize) -> Receiver<()> {
        self.catch(request, pass, true)
    }

    fn catch(&self, request: &str, pass: usize, deny: bool) -> Receiver<()> {
        let (tell, told) = channel();
        *lock(&self.shared.caught) = Some(Caught {
            request: request.to_owned(),
            pass,
            deny,
            tell,
        });
        told
    }

    /// Faults that took place; those that were to come are forgotten.
    pub(crate) fn take_done(&self) -> Vec<Fault> {
        lock(&self.shared.faults).clear();
        std::mem::take(&mut *lock(&self.shared.done))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the one who listens.
        drop(TcpStream::connect(self.address));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn connect(self: Arc<Self>, client: TcpStream, fault: Option<Fault>) -> io::Result<()> {
        match fault {
            Some(Fault::Refuse) => {
                lock(&self.done).push(Fault::Refuse);
                return Ok(());
            }
            Some(Fault::SlowDown) => return self.slow_down(client),
            _ => {}
        }
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let up = thread::spawn({
            let (shared, from, to) = (Arc::clone(&self), client.try_clone()?, server.try_clone()?);
            move || shared.carry(Way::Up, from, to, fault).ok()
        });
        self.carry(Way::Down, server, client, fault).ok();
        up.join().ok();
        Ok(())
    }

    /// Carries bytes one way until an end or a fault.
    fn carry(
        &self,
        way: Way,
        mut from: TcpStream,
        mut to: TcpStream,
        fault: Option<Fault>,
    ) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        let mut carried = 0;
        loop {
            let read = from.read(&mut buffer)?;
            if read == 0 {
                return to.shutdown(Shutdown::Write);
            }
            let bytes = &mut buffer[..read];
            if way == Way::Up
                && let Some(deny) = self.catches(bytes)
            {
                if deny {
                    return deny_it(from);
                }
                self.wait();
                return Ok(());
            }
            let reached = |at: usize| {
                (carried..carried + read)
                    .contains(&at)
                    .then(|| at - carried)
            };
            match fault {
                Some(Fault::Flip(on, at)) if on == way => {
                    if let Some(at) = reached(at) {
                        bytes[at] ^= 0x20;
                        lock(&self.done).extend(fault);
                    }
                }
                Some(Fault::Stall(on, at)) if on == way && reached(at).is_some() => {
                    lock(&self.done).extend(fault);
                    to.write_all(&bytes[..at - carried])?;
                    self.wait();
                    return Ok(());
                }
                Some(Fault::Cut(on, at)) if on == way && reached(at).is_some() => {
                    lock(&self.done).extend(fault);
                    to.write_all(&bytes[..at - carried])?;
                    to.shutdown(Shutdown::Both)?;
                    return from.shutdown(Shutdown::Both);
                }
                _ => {}
            }
            to.write_all(bytes)?;
            carried += read;
        }
    }

    /// Whether a request that begins with these bytes is caught: whether it is denied, then.
    fn catches(&self, bytes: &[u8]) -> Option<bool> {
        let mut caught = lock(&self.caught);
        let caught = caught.as_mut()?;
        if !bytes.starts_with(caught.request.as_bytes()) {
            return None;
        }
        if caught.pass > 0 {
            caught.pass -= 1;
            return None;
        }
        caught.tell.send(()).ok();
        Some(caught.deny)
    }

    /// Waits for the end of the proxy.
    fn wait(&self) {
        while !self.stopped.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn slow_down(&self, mut client: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte)? == 1 {
            head.push(byte[0]);
        }
        let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
                    <Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
        lock(&self.done).push(Fault::SlowDown);
        write!(
            client,
            "HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        )?;
        client.shutdown(Shutdown::Write)?;
        // What the client still sends is taken, or it would see a reset instead of the answer.
        io::copy(&mut client, &mut io::sink()).map(drop)
    }
}
