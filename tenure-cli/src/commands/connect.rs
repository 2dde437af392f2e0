//! Connect: the settings of a command, and its connections.

use std::time::Duration;

use super::{Cli, Command, Usage};
use tenure::{
    Config, StoreError, Tenure,
    audit::Actor,
    cells::{Cells, Layout},
    internals::{NEEDS, Parts as _, Settings},
};

impl Cli {
    /// Loads the settings: flags override the environment, which overrides the file.
    pub(super) fn settings(&self) -> anyhow::Result<Settings> {
        let file = self.settings_file.as_deref().map(|path| (path, "--config"));
        let flags = [
            ("DATABASE_URL", "--database-url", self.database_url.as_deref()),
            ("NATS_URL", "--nats-url", self.nats_url.as_deref()),
        ];
        Ok(Settings::load(file, &flags)?)
    }

    /// The configuration of the cell that `--cell` names, or of the only one.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let settings = self.settings()?;
        let Some(name) = &self.cell else {
            let mut config = settings.config()?;
            self.adapt(&mut config);
            return Ok(config);
        };
        let none = || {
            Usage(
                "--cell names one of several cells; list the cells in a file, and name it by TENURE_CELLS"
                    .into(),
            )
        };
        let layout = settings.layout()?.ok_or_else(none)?;
        let known = layout.names().collect::<Vec<_>>().join(", ");
        let config = layout.config_of(name);
        let mut config = config
            .cloned()
            .ok_or_else(|| Usage(format!("there is no cell {name:?}; the file has: {known}")))?;
        // One process, one cell: the address is its own.
        config.listen = layout.listen();
        self.adapt(&mut config);
        Ok(config)
    }

    /// Names who acts by a command: the setting, or the system's user and host. What runs on acts for others. A person
    /// who enqueues a job does not wait for NATS: the relay publishes what it does not confirm within a second.
    fn adapt(&self, config: &mut Config) {
        if let Command::Enqueue(_) = self.command {
            config.timing.publish_within = config.timing.publish_within.min(Duration::from_secs(1));
        }
        if let Command::Work(_) | Command::Gateway | Command::Serve(_) = self.command {
            return;
        }
        let variable = |name| std::env::var(name).ok().filter(|user: &String| !user.is_empty());
        let user = || {
            variable("USER")
                .or_else(|| variable("LOGNAME"))
                .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
        };
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let named = config.actor.name().map_or_else(|| format!("{}@{}", user(), host()), str::to_owned);
        config.actor = Actor::new(&named).via("command line");
    }

    /// The cells, if there are several, and the command is not for one of them alone.
    pub(super) fn layout(&self) -> anyhow::Result<Option<Layout>> {
        if self.cell.is_some() || !self.command.reads_settings() {
            return Ok(None);
        }
        Ok(self.settings()?.layout()?.map(|layout| layout.each_config(|config| self.adapt(config))))
    }

    /// Connects to all cells, if there are several, and the command is not for one of them alone.
    pub(super) async fn cells(&self) -> anyhow::Result<Option<Cells>> {
        let Some(layout) = self.layout()? else { return Ok(None) };
        Ok(Some(Cells::connect(&layout).await?))
    }

    /// Connects, for a command that reads or writes what the schema holds.
    ///
    /// # Errors
    ///
    /// Refuses a schema that leaves this program behind: the command might misread it, or write what a newer release
    /// cannot read.
    pub(super) async fn connect(&self) -> anyhow::Result<Tenure> {
        let tenure = self.connect_to_any().await?;
        match self.check(&tenure).await {
            Ok(()) => Ok(tenure),
            Err(error) => {
                tenure.close().await;
                Err(error)
            }
        }
    }

    /// Checks that this program knows the schema.
    async fn check(&self, tenure: &Tenure) -> anyhow::Result<()> {
        match tenure.store().schema().await {
            Ok(schema) if schema.breaks_before > NEEDS => {
                anyhow::bail!(
                    "this program is too old: it knows version {NEEDS} of the schema, but the database is at version \
                     {}, which requires a program that knows version {}; deploy a newer release",
                    schema.version,
                    schema.breaks_before
                )
            }
            // The command itself says what is missing: the schema, or a right.
            Ok(_) | Err(StoreError::NotMigrated(_)) => Ok(()),
            Err(error) if error.is_denied() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects, for a command that judges the schema itself.
    pub(super) async fn connect_to_any(&self) -> anyhow::Result<Tenure> {
        Ok(Tenure::connect(&self.config()?).await?)
    }
}

impl Command {
    /// Whether the command needs settings of tenure.
    fn reads_settings(&self) -> bool {
        match self {
            Self::Dev(_)
            | Self::Completions { .. }
            | Self::Man { .. }
            | Self::ExecGuard { .. }
            | Self::BenchWorker { .. }
            | Self::Config => false,
            Self::Bench(args) => args.on_servers,
            _ => true,
        }
    }
}
