//! Monitor: a private NATS that tells how many messages it has passed on.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::dev::Nats;

/// How long the server may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Where a private server tells about itself.
pub(super) struct Monitor {
    /// Host and port.
    address: String,
}

impl Monitor {
    /// Starts a server in this folder that is monitored on a loopback port of its own choice.
    pub(super) fn start(folder: &Path) -> anyhow::Result<(Nats, Self)> {
        fs::create_dir_all(folder).context("create the folder of NATS")?;
        let config = folder.join("monitored.conf");
        let told_in = Value::from(folder.to_string_lossy());
        let text = format!("http: \"127.0.0.1:-1\"\nports_file_dir: {told_in}\n");
        fs::write(&config, text).context("write the settings of NATS")?;
        let nats = Nats::start_with(folder, Some(&config))?;
        let address = address(folder)?;
        Ok((nats, Self { address }))
    }

    /// Messages that the server has taken and given so far, those of its own included.
    pub(super) async fn messages(&self) -> anyhow::Result<f64> {
        let variables = timeout(ANSWERS_WITHIN, self.ask("/varz")).await.context("NATS tells nothing")??;
        let counter = |name: &str| variables.get(name).and_then(Value::as_f64);
        let (taken, given) = (counter("in_msgs"), counter("out_msgs"));
        taken.zip(given).map(|(taken, given)| taken + given).context("NATS does not count messages")
    }

    async fn ask(&self, path: &str) -> anyhow::Result<Value> {
        let mut stream = TcpStream::connect(&self.address).await.context("connect to the monitor of NATS")?;
        // Of this version, it ends the connection after its answer.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => Ok(serde_json::from_str(body)?),
            _ => bail!("the monitor of NATS answers {answer:?}"),
        }
    }
}

/// Where the server says it is monitored; it says so soon after it answers its first client.
fn address(folder: &Path) -> anyhow::Result<String> {
    let since = Instant::now();
    loop {
        for entry in fs::read_dir(folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "ports")
                // It may be half written.
                && let Ok(ports) = serde_json::from_str::<Value>(&fs::read_to_string(&path)?)
                && let Some(url) = ports.pointer("/monitoring/0").and_then(Value::as_str)
                && let Some(address) = url.strip_prefix("http://")
            {
                return Ok(address.to_owned());
            }
        }
        if since.elapsed() > ANSWERS_WITHIN {
            bail!("NATS does not tell on which port it is monitored");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
