//! `tenure dev`: private servers until Ctrl-C.

use std::{fs, net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};

use super::DevArgs;
use tenure::{Config, Tenure, dev::Servers, dev::postgres_user, shutdown_signal};

pub(super) async fn run(args: &DevArgs) -> anyhow::Result<ExitCode> {
    let temporary = if args.ephemeral { Some(temporary_folder()?) } else { None };
    let folder = match (&temporary, &args.folder) {
        (Some(temporary), _) => temporary.path().to_path_buf(),
        (None, Some(folder)) => folder.clone(),
        (None, None) => default_folder()?,
    };
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let lock = fs::File::create(folder.join("lock")).context("create the lock file")?;
    if lock.try_lock().is_err() {
        let urls = fs::read_to_string(folder.join("environment")).unwrap_or_default();
        bail!("another `tenure dev` is running in {}:\n{urls}", folder.display());
    }
    let first = if folder.join("postgres").exists() { "" } else { "; the first start creates a database" };
    eprintln!("tenure dev: starting Postgres and NATS in {}{first}", folder.display());
    // Starting the servers blocks this thread; nothing else runs yet.
    let mut servers = Servers::start(&folder)?;
    let config = Config::new(servers.postgres.url(), servers.nats.url());
    let tenure = Tenure::connect(&config).await?;
    tenure.setup(&[]).await?;
    tenure.close().await;

    let environment =
        format!("export DATABASE_URL={}\nexport NATS_URL={}\n", servers.postgres.url(), servers.nats.url());
    write_private(&folder.join("environment"), &environment)?;
    eprintln!("tenure dev: Postgres and NATS run in {}; Ctrl-C stops them.", folder.display());
    eprintln!("In another terminal:\n");
    print!("{environment}");
    eprintln!("\n  tenure enqueue demo hello '{{\"name\": \"world\"}}'");
    eprintln!("  tenure work demo --exec 'cat >&2'");
    eprintln!("  tenure serve    # the dashboard, at http://{}", SocketAddr::from(super::serve::LISTEN));
    shutdown_signal().await;
    eprintln!("tenure dev: stopping");
    servers.stop();
    fs::remove_file(folder.join("environment")).ok();
    drop(temporary);
    Ok(ExitCode::SUCCESS)
}

/// The environment holds the password.
fn write_private(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}

fn temporary_folder() -> anyhow::Result<tempfile::TempDir> {
    let folder =
        tempfile::Builder::new().prefix("tenure-dev-").tempdir().context("create a temporary folder")?;
    open_for_postgres(folder.path())?;
    Ok(folder)
}

fn default_folder() -> anyhow::Result<PathBuf> {
    if postgres_user().is_some() {
        // The user that Postgres runs as cannot enter root's own folders.
        let folder = PathBuf::from("/var/lib/tenure-dev");
        fs::create_dir_all(&folder).context("create /var/lib/tenure-dev")?;
        open_for_postgres(&folder)?;
        return Ok(folder);
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(PathBuf::from)?;
        Some(home.join(".local/share"))
    });
    Ok(data.context("neither XDG_DATA_HOME nor HOME is set; give --folder")?.join("tenure/dev"))
}

/// Postgres runs as a user other than root, and must be able to reach its own folder inside.
fn open_for_postgres(folder: &std::path::Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if postgres_user().is_some() {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
            .context("open the folder for postgres")?;
    }
    Ok(())
}
