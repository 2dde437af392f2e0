//! Monitor: a private NATS that counts its messages.

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

use tenure::dev::Nats;

/// How long the server may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The monitoring endpoint of a private server.
pub(super) struct Monitor {
    /// Host and port.
    address: String,
}

impl Monitor {
    /// Starts a server in this folder, monitored on a loopback port that it chooses.
    pub(super) fn start(folder: &Path) -> anyhow::Result<(Nats, Self)> {
        fs::create_dir_all(folder).context("create the folder of NATS")?;
        let config = folder.join("monitored.conf");
        let ports_folder = Value::from(folder.to_string_lossy());
        let text = format!("http: \"127.0.0.1:-1\"\nports_file_dir: {ports_folder}\n");
        fs::write(&config, text).context("write the settings of NATS")?;
        let nats = Nats::start_with(folder, Some(&config))?;
        let address = address(folder)?;
        Ok((nats, Self { address }))
    }

    /// Messages that the server has received and sent so far, its own included.
    pub(super) async fn messages(&self) -> anyhow::Result<f64> {
        let variables = timeout(ANSWERS_WITHIN, self.ask("/varz"))
            .await
            .context("the monitor of NATS does not answer")??;
        let counter = |name: &str| variables.get(name).and_then(Value::as_f64);
        let (received, sent) = (counter("in_msgs"), counter("out_msgs"));
        received.zip(sent).map(|(received, sent)| received + sent).context("NATS does not count messages")
    }

    async fn ask(&self, path: &str) -> anyhow::Result<Value> {
        let mut stream = TcpStream::connect(&self.address).await.context("connect to the monitor of NATS")?;
        // With HTTP/1.0 the server ends the connection after its answer.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => Ok(serde_json::from_str(body)?),
            _ => bail!("the monitor of NATS answers {answer:?}"),
        }
    }
}

/// The address of the monitor, from the file that the server writes soon after it answers its first client.
fn address(folder: &Path) -> anyhow::Result<String> {
    let since = Instant::now();
    loop {
        for entry in fs::read_dir(folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "ports")
                // The file may be half written.
                && let Ok(ports) = serde_json::from_str::<Value>(&fs::read_to_string(&path)?)
                && let Some(url) = ports.pointer("/monitoring/0").and_then(Value::as_str)
                && let Some(address) = url.strip_prefix("http://")
            {
                return Ok(address.to_owned());
            }
        }
        if since.elapsed() > ANSWERS_WITHIN {
            bail!("NATS did not write the port of its monitor");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
