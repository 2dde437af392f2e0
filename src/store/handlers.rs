//! Handlers: checks whether the application's pool can serve handlers' transactions.

use sqlx::{Row, postgres::PgRow, query};

use super::{
    HANDLER_POOL,
    call::{Store, StoreError},
};

/// The database to which the application's pool leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerPool {
    /// tenure's database: whether the server accepts writes, and whether the role may write.
    Fits {
        writes: bool,
        may_write: bool,
    },
    /// Another database, or one without tenure's schema.
    Elsewhere,
    Closed,
}

/// Returns the cluster and the database of a connection.
fn place(row: &PgRow) -> Result<(String, i64), sqlx::Error> {
    Ok((row.try_get("cluster")?, row.try_get("database")?))
}

impl Store {
    /// Checks the application's pool; `None` if the application gave no pool.
    pub(crate) async fn check_handlers(&self) -> Result<Option<HandlerPool>, StoreError> {
        let (pool, is_given) = self.handlers();
        if !is_given {
            return Ok(None);
        }
        if pool.is_closed() {
            return Ok(Some(HandlerPool::Closed));
        }
        let own = self.rows(query(HANDLER_POOL)).await?;
        let theirs = match self.rows_of_handlers(query(HANDLER_POOL)).await {
            Err(StoreError::NotMigrated(_)) => return Ok(Some(HandlerPool::Elsewhere)),
            rows => rows?,
        };
        let (Some(own), Some(theirs)) = (own.first(), theirs.first()) else {
            return Err(sqlx::Error::RowNotFound.into());
        };
        if place(own)? != place(theirs)? {
            return Ok(Some(HandlerPool::Elsewhere));
        }
        let (writes, may_write) = (theirs.try_get("writes")?, theirs.try_get("may_write")?);
        Ok(Some(HandlerPool::Fits { writes, may_write }))
    }
}
