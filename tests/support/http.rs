//! Small HTTP servers that answer what a test says.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// The URL of a server on a port of its own that gives `answer` the head and the body of each
/// request, and sends what it makes of them: see [`http`]. It runs as long as the tests do.
pub(crate) fn serve(answer: impl Fn(&str, &str) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming() {
            let serve = |mut client: TcpStream| {
                let mut reader = BufReader::new(client.try_clone()?);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    let named = name.eq_ignore_ascii_case("content-length");
                    value.trim().parse().ok().filter(|_| named)
                });
                let mut body = Vec::new();
                reader.take(length.unwrap_or(0)).read_to_end(&mut body)?;
                let body = String::from_utf8_lossy(&body);
                client.write_all(answer(&head, &body).as_bytes())
            };
            // A client that goes away is none of our business.
            client.and_then(serve).ok();
        }
    });
    format!("http://{address}")
}

/// An answer.
pub(crate) fn http(status: &str, head: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
