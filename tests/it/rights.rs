//! The rights of the shipped roles of Postgres, one by one, as docs/security.md lists them.

use std::collections::BTreeMap;

use crate::harness::{Bench, bench_with_servers, docs_hold};

/// What the catalogue grants on relations: each with its role, act and columns.
const ON_RELATIONS: &str = "
SELECT name::text, role, lower(act) || coalesce(' (' || string_agg(col, ', ' ORDER BY place) || ')', '')
  FROM (SELECT c.relname AS name, a.grantee, a.privilege_type AS act, NULL::text AS col, NULL::int AS place
          FROM pg_class c, aclexplode(c.relacl) a
         WHERE c.relnamespace = 'tenure'::regnamespace AND NOT c.relispartition AND a.grantee <> c.relowner
         UNION ALL
        SELECT c.relname, a.grantee, a.privilege_type, t.attname, t.attnum
          FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a
         WHERE c.relnamespace = 'tenure'::regnamespace) held,
       LATERAL (SELECT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role) r
 GROUP BY name, role, act
 ORDER BY name, role, array_position('{SELECT,INSERT,UPDATE,DELETE}', act)";

/// And on the functions that run with their owner's rights.
const ON_FUNCTIONS: &str = "
SELECT p.proname::text, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, 'call'
  FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
 WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef AND p.prorettype <> 'trigger'::regtype
   AND a.grantee <> p.proowner
 GROUP BY 1, 2 ORDER BY 1, 2";

/// What each role may do with one relation, or one function.
type Rights = BTreeMap<String, Vec<String>>;

async fn rights(bench: &Bench, sql: &'static str) -> BTreeMap<String, Rights> {
    let mut all: BTreeMap<String, Rights> = BTreeMap::new();
    let rows: Vec<(String, String, String)> = sqlx::query_as(sql).fetch_all(&bench.pool).await.unwrap();
    for (name, role, act) in rows {
        let act = act.replace("select", "read");
        all.entry(name).or_default().entry(role).or_default().push(act);
    }
    all
}

/// Each role's, of relations and of functions; a worker's are an operator's, too, and a viewer reads all but the key.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_rights_is_what_the_roles_have() {
    let bench = bench_with_servers(|_| {}).await;
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    let relations = rights(&bench, ON_RELATIONS).await;
    let functions = rights(&bench, ON_FUNCTIONS).await;
    let readable: i64 = bench
        .value(
            "SELECT count(*) FROM pg_class c WHERE relnamespace = 'tenure'::regnamespace AND NOT relispartition
                AND relkind IN ('r', 'p', 'v') AND has_table_privilege('tenure_viewer', c.oid, 'SELECT')
                    <> (relname <> 'gateway_keys')",
        )
        .await;
    assert_eq!(readable, 0, "a viewer reads everything but the key");
    assert!(bench.value::<bool>("SELECT pg_has_role('tenure_operator', 'tenure_worker', 'USAGE')").await);
    let mut table =
        "| in schema `tenure` | `tenure_producer` | `tenure_worker` | `tenure_operator`, besides |\n\
                     |---|---|---|---|"
            .to_owned();
    let named = relations.iter().map(|(name, of)| (format!("`{name}`"), of));
    let called = functions.iter().map(|(name, of)| (format!("`{name}()`"), of));
    for (name, of) in named.chain(called) {
        let is_harmless =
            ["`has_quarantines()`", "`has_redrives()`", "`look_from()`"].contains(&name.as_str());
        assert_eq!(
            of.contains_key("PUBLIC"),
            is_harmless,
            "everybody has a right, or lost one: {name} {of:?}"
        );
        if let Some(viewer) = of.get("tenure_viewer") {
            assert_eq!(viewer, &["read"], "{name}");
        }
        let rights = |role: &str| of.get(role).map(|acts| acts.join("; ")).unwrap_or_default();
        let columns = ["tenure_producer", "tenure_worker", "tenure_operator"].map(rights);
        if columns.iter().any(|column| !column.is_empty()) {
            table.push_str(&format!("\n| {name} | {} |", columns.join(" | ")));
        }
    }
    docs_hold(
        "security.md",
        ("<!-- rights -->", "<!-- end of rights -->"),
        &table,
        "the_table_of_rights_is_what_the_roles_have",
    );
}
