//! One request, over a fresh connection.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

pub struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    /// The values of a header, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    /// Every header with its value, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.head.lines().filter_map(|line| line.split_once(": "))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }
}

/// A free address.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, tenure::dev::free_port().unwrap()).into()
}

/// Returns `None` if no process listens. Without a `Host` among the headers, the address is used.
pub fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}
