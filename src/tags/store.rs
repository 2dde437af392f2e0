//! Tags of jobs: their statement for metrics. Lists and actions select by tags in `views` and `dead`.

use std::collections::HashMap;

use sqlx::{Row, query};

use crate::{
    job::JobId,
    store::{Store, StoreError, statement_list},
};

statement_list! {
    TAGS_OF = "sql" "tags_of";
}

impl Store {
    /// Returns the tags of these jobs whose key is asked for; of a tag without a value, the tag itself.
    pub(crate) async fn tags_of(
        &self,
        jobs: &[JobId],
        asked: &[String],
    ) -> Result<HashMap<JobId, Vec<String>>, StoreError> {
        let rows = self.rows(query(TAGS_OF).bind(jobs).bind(asked)).await?;
        let mut tags: HashMap<JobId, Vec<String>> = HashMap::new();
        for row in rows {
            tags.entry(row.try_get("job_id")?).or_default().push(row.try_get("tag")?);
        }
        Ok(tags)
    }
}
