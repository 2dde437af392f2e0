-- grantable: whether the roles of postgres/roles.sql exist, whether they have rights in this database, and whether this
-- role may grant them.
SELECT count(r.oid) = 4 AS are_there,
       coalesce(bool_and(has_schema_privilege(r.oid, n.oid, 'USAGE')), false) AS are_granted,
       pg_has_role(n.nspowner, 'USAGE') AS may_grant
  FROM pg_namespace n
  LEFT JOIN pg_roles r ON r.rolname IN ('tenure_producer', 'tenure_worker', 'tenure_operator', 'tenure_viewer')
 WHERE n.nspname = 'tenure'
 GROUP BY n.oid, n.nspowner
