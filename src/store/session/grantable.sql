-- grantable: which roles of postgres/roles.sql do not exist, whether they have rights in this database, the text that was
-- granted last, and whether this role may grant.
SELECT count(*) AS roles,
       coalesce(array_agg(u.name ORDER BY u.name) FILTER (WHERE r.oid IS NULL), '{}') AS lacks,
       coalesce(bool_and(has_schema_privilege(r.oid, n.oid, 'USAGE')), false) AS have_rights,
       (SELECT f.checksum FROM tenure.functions f WHERE f.name = 'postgres/roles.sql') AS granted,
       pg_has_role(n.nspowner, 'USAGE') AS may_grant
  FROM pg_namespace n
 CROSS JOIN unnest('{tenure_producer,tenure_worker,tenure_operator,tenure_viewer}'::text[]) AS u(name)
  LEFT JOIN pg_roles r ON r.rolname = u.name
 WHERE n.nspname = 'tenure'
 GROUP BY n.oid, n.nspowner
