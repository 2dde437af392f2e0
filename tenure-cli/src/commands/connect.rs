//! Connect: the settings of a command, and its connections.

use super::Cli;
use tenure::{
    Config, StoreError, Tenure,
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

    pub(super) fn config(&self) -> anyhow::Result<Config> {
        Ok(self.settings()?.config()?)
    }

    /// Connects, for a command that reads or writes what the schema holds.
    ///
    /// # Errors
    ///
    /// Refuses a schema that leaves this program behind: the command might misread it, or write what a newer release
    /// cannot read.
    pub(super) async fn connect(&self) -> anyhow::Result<Tenure> {
        let tenure = self.connect_to_any().await?;
        match tenure.store().schema().await {
            Ok(schema) if schema.breaks_before > NEEDS => {
                tenure.close().await;
                anyhow::bail!(
                    "this program is too old: it knows version {NEEDS} of the schema, but the database is at version \
                     {}, which requires a program that knows version {}; deploy a newer release",
                    schema.version,
                    schema.breaks_before
                )
            }
            // The command itself says what is missing: the schema, or a right.
            Ok(_) | Err(StoreError::NotMigrated(_)) => Ok(tenure),
            Err(error) if error.is_denied() => Ok(tenure),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects, for a command that judges the schema itself.
    pub(super) async fn connect_to_any(&self) -> anyhow::Result<Tenure> {
        Ok(Tenure::connect(&self.config()?).await?)
    }
}
