//! A proxy between a worker and a server, whose link can be cut as a network cuts it: silently.

use std::net::Ipv4Addr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// A link to one port of the loopback interface. Dropped, it is gone.
pub struct Proxy {
    port: u16,
    to: u16,
    passes: watch::Sender<bool>,
    task: AbortHandle,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (passes, watched) = watch::channel(true);
        let task = tokio::spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                links.spawn(copy(from_client, to_server, watched.clone()));
                links.spawn(copy(from_server, to_client, watched.clone()));
            }
        });
        Self { port: own, to: port, passes, task: task.abort_handle() }
    }

    /// A URL of the server, by way of this link.
    pub fn of(&self, url: &str) -> String {
        let (before, after) = (format!(":{}", self.to), format!(":{}", self.port));
        assert!(url.contains(&before), "{url} is not where this link goes");
        url.replace(&before, &after)
    }

    /// From now on nothing passes; nobody is told.
    pub fn cut(&self) {
        self.passes.send_replace(false);
    }

    /// What waited passes, and everything after it.
    pub fn mend(&self) {
        self.passes.send_replace(true);
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passes: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if passes.wait_for(|passes| *passes).await.is_err()
            || n == 0
            || to.write_all(&buffer[..n]).await.is_err()
        {
            return;
        }
    }
}
