//! The statements that a migration may use while workers of the release before it run: they add, and lock briefly.
//!
//! An allow-list, not a deny-list: a person looks first at every new form of statement.

/// Tables that may be large. Building an index over one of them blocks every writer meanwhile.
const LARGE: &[&str] = &[
    "tenure.jobs",
    "tenure.job_history",
    "tenure.dead_letter_jobs",
    "tenure.job_keys",
    "tenure.job_executions",
    "tenure.recovery_events",
    "tenure.effects",
];

/// Defaults that differ for each row, so that adding the column rewrites every row.
const VOLATILE: &[&str] =
    &["clock_timestamp", "timeofday", "random", "gen_random_uuid", "nextval", "serial", "generated"];

/// Names that statements of released programs use for something else beside a table's own columns: such a column would
/// make their statements ambiguous.
const TAKEN: &[(&str, &[&str])] = &[
    ("tenure.jobs", &["category", "charged", "error", "output", "passed", "report", "route", "verdict"]),
    ("tenure.workers", &["queue"]),
];

/// The statements of a migration that do more than add, each with the reason.
pub fn objections(sql: &str) -> Vec<String> {
    let statements = statements(sql);
    let created: Vec<String> = statements
        .iter()
        .filter_map(|statement| statement.strip_prefix("create table "))
        .map(|rest| name(rest.trim_start_matches("if not exists ")).to_owned())
        .collect();
    // A default of a column that the migration has added changes no row, and no older program writes that column.
    let is_default_of_new = |statement: &String| {
        let parts = statement.split_once(" alter column ").zip(statement.split_once(" set default "));
        parts.is_some_and(|((table, column), _)| {
            let adds = format!("{table} add column {} ", name(column));
            statements.iter().any(|other| other.starts_with(&adds))
        })
    };
    // It fires for no row of an older program: none of these writes the new column.
    let is_trigger_of_new = |statement: &String| {
        let table = statement.strip_prefix("create constraint trigger ").and_then(|rest| {
            let (_, rest) = rest.split_once(" after delete on ")?;
            let (table, when) = rest.split_once(" deferrable initially deferred for each row when (old.")?;
            let (column, rest) = when.split_once(' ')?;
            rest.starts_with("is not null) execute function ").then(|| (name(table), name(column)))
        });
        table.is_some_and(|(table, column)| {
            let adds = format!("alter table {table} add column {column} ");
            statements.iter().any(|other| other.starts_with(&adds))
        })
    };
    statements
        .iter()
        .filter(|statement| !is_default_of_new(statement) && !is_trigger_of_new(statement))
        .filter_map(|statement| objection(statement, &created).map(|why| format!("{why}: {statement}")))
        .collect()
}

/// A migration's statements: in lower case, on one line, without comments, and with empty texts and bodies.
pub fn statements(sql: &str) -> Vec<String> {
    let mut flat = String::new();
    let mut rest = sql;
    while let Some(c) = rest.chars().next() {
        let end = match c {
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            '\'' => {
                flat.push_str("''");
                rest[1..].find('\'').map_or(rest.len(), |at| at + 2)
            }
            '$' if rest.starts_with("$$") => {
                flat.push_str("$$");
                rest[2..].find("$$").map_or(rest.len(), |at| at + 4)
            }
            c => {
                flat.extend(c.to_lowercase());
                c.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    let lines = flat.split(';').map(|statement| statement.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|statement| !statement.is_empty()).collect()
}

/// The table's name at the beginning of a text.
fn name(text: &str) -> &str {
    text.split([' ', '(']).next().unwrap_or_default()
}

fn objection(statement: &str, created: &[String]) -> Option<&'static str> {
    let is_new = |table: &str| created.iter().any(|created| created == table);
    if let Some(rest) = statement.strip_prefix("alter table ") {
        let table = name(rest);
        if is_new(table) {
            return None;
        }
        if table.is_empty() || !table.starts_with("tenure.") {
            return Some("a migration names tables with their schema, and only tenure's");
        }
        return actions(&rest[table.len()..])
            .into_iter()
            .find_map(|action| objection_to_action(table, &action));
    }
    for unique in ["create index ", "create unique index "] {
        if let Some(rest) = statement.strip_prefix(unique) {
            let (_, on) = rest.split_once(" on ")?;
            let table = name(on);
            if is_new(table) {
                return None;
            }
            if unique.contains("unique") {
                return Some("older programs write rows that are not unique");
            }
            return LARGE.contains(&table).then_some("building it blocks every writer of this table");
        }
    }
    let adds = [
        "create table ",
        "create view ",
        // Postgres itself refuses to remove a view's column.
        "create or replace view ",
        "comment on ",
        "grant ",
        "revoke ",
        "select tenure.create_history_partitions(",
    ];
    if adds.iter().any(|add| statement.starts_with(add)) {
        let partition = statement.contains(" partition of ") && statement.starts_with("create table ");
        return partition.then_some("a partition locks the whole table");
    }
    if let Some(rest) = statement.strip_prefix("insert into ") {
        return (!is_new(name(rest))).then_some("it writes rows to a table in use");
    }
    Some("not on the list of statements that only add")
}

/// The parts of ALTER TABLE, which commas separate.
fn actions(text: &str) -> Vec<String> {
    let mut depth = 0_u32;
    let mut actions = vec![String::new()];
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                actions.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(action) = actions.last_mut() {
            action.push(c);
        }
    }
    actions.into_iter().map(|action| action.trim().to_owned()).collect()
}

fn objection_to_action(table: &str, action: &str) -> Option<&'static str> {
    let Some(column) = action.strip_prefix("add column ") else {
        // Storage parameters block no statement.
        return (!action.starts_with("set (")).then_some("not on the list of statements that only add");
    };
    let mut taken = TAKEN.iter().filter(|(of, _)| *of == table).flat_map(|(_, names)| *names);
    if taken.any(|taken| *taken == name(column)) {
        return Some("older programs use this name for something else");
    }
    let words: Vec<_> = column.split([' ', '(', ')']).collect();
    if VOLATILE.iter().any(|volatile| words.iter().any(|word| word.ends_with(volatile))) {
        return Some("it rewrites every row under the lock");
    }
    if column.contains(" not null") && !column.contains(" default ") {
        return Some("older programs write rows without this column");
    }
    let checked = ["check", "unique", "primary", "references"];
    if words.iter().any(|word| checked.contains(word)) {
        return Some("it checks every row under the lock, and older programs do not know the rule");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_only_adds_passes() {
        let sql = "-- Adds; drops nothing.
            CREATE TABLE tenure.new (id uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
            CREATE UNIQUE INDEX new_by_time ON tenure.new (at);
            ALTER TABLE tenure.new ADD CONSTRAINT c CHECK (id IS NOT NULL);
            INSERT INTO tenure.new VALUES (gen_random_uuid());
            ALTER TABLE tenure.jobs ADD COLUMN tenant text, ADD COLUMN weight numeric(3, 1) NOT NULL DEFAULT 1;
            ALTER TABLE tenure.workers ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now();
            ALTER TABLE tenure.jobs ADD COLUMN ended_by xid8;
            ALTER TABLE tenure.jobs ALTER COLUMN ended_by SET DEFAULT pg_current_xact_id();
            ALTER TABLE tenure.jobs SET (fillfactor = 50);
            CREATE INDEX workers_by_pid ON tenure.workers (pid);
            CREATE OR REPLACE VIEW tenure.v AS SELECT 1 AS one;
            COMMENT ON COLUMN tenure.jobs.tenant IS 'it''s; a ''';
            REVOKE ALL ON FUNCTION tenure.f() FROM PUBLIC;";
        assert_eq!(objections(sql), [""; 0]);
        assert_eq!(statements(sql).len(), 13);
    }

    #[test]
    fn a_statement_that_removes_rewrites_or_locks_for_long_is_rejected() {
        for sql in [
            "DROP TABLE tenure.effects",
            "DROP INDEX tenure.jobs_pkey",
            "DROP INDEX tenure.job_edges_open CASCADE",
            "TRUNCATE tenure.effects",
            "DELETE FROM tenure.effects",
            "UPDATE tenure.jobs SET stage = NULL",
            "INSERT INTO tenure.queues VALUES ('q')",
            "DO $$ BEGIN END $$",
            "LOCK TABLE tenure.jobs",
            "ALTER TABLE tenure.jobs DROP COLUMN stage",
            "ALTER TABLE tenure.jobs RENAME COLUMN stage TO step",
            "ALTER TABLE tenure.jobs RENAME TO work",
            "ALTER TABLE tenure.jobs ALTER COLUMN losses TYPE bigint",
            "ALTER TABLE tenure.jobs ALTER COLUMN stage SET NOT NULL",
            "ALTER TABLE tenure.jobs ALTER COLUMN stage SET DEFAULT 'x'",
            "ALTER TABLE tenure.jobs ADD CONSTRAINT c CHECK (attempt >= 0)",
            "ALTER TABLE tenure.jobs ADD COLUMN a text, DROP COLUMN stage",
            "ALTER TABLE tenure.jobs ADD COLUMN a text NOT NULL",
            "ALTER TABLE tenure.jobs ADD COLUMN a uuid NOT NULL DEFAULT gen_random_uuid()",
            "ALTER TABLE tenure.jobs ADD COLUMN a timestamptz DEFAULT pg_catalog.clock_timestamp()",
            "ALTER TABLE tenure.jobs ADD COLUMN a bigserial",
            "ALTER TABLE tenure.jobs ADD COLUMN a int CHECK (a > 0)",
            "ALTER TABLE tenure.jobs ADD COLUMN a text UNIQUE",
            "ALTER TABLE tenure.jobs ADD COLUMN output text",
            "ALTER TABLE public.mine ADD COLUMN a text",
            "CREATE INDEX a ON tenure.job_history (finished_at)",
            "CREATE UNIQUE INDEX a ON tenure.workers (pid)",
            "CREATE INDEX CONCURRENTLY a ON tenure.jobs (kind)",
            "CREATE TABLE tenure.a PARTITION OF tenure.job_history DEFAULT",
            "CREATE TRIGGER t BEFORE INSERT ON tenure.jobs EXECUTE FUNCTION tenure.f()",
            // A function stands in its own file.
            "CREATE OR REPLACE FUNCTION tenure.f() RETURNS void LANGUAGE sql AS $$ $$",
            "DROP FUNCTION tenure.f()",
            "ALTER FUNCTION tenure.g(text, int) RENAME TO g_2",
        ] {
            assert_eq!(objections(&format!("{sql}; -- it\n")).len(), 1, "{sql}");
        }
    }
}
