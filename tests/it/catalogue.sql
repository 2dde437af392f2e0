-- catalogue: what the schema `tenure` is made of, as rows of what each thing is, and its definition.
--
-- Two databases have the same schema if this returns the same rows from both. The partitions of single days are DAY
-- here, once for all: their names and bounds carry dates, and the names of their indexes depend on when each was built.
-- A right that is there by default, and one that was granted, read alike.
WITH relation AS (
    SELECT c.*, regexp_replace(c.relname, '_[0-9]{8}(?=$|_)', '_DAY') AS name
      FROM pg_class c
     WHERE c.relnamespace = 'tenure'::regnamespace
), found (what, definition) AS (
    SELECT 'schema tenure',
           format('rights %s', ARRAY(SELECT r::text FROM unnest(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS r ORDER BY 1))
      FROM pg_namespace n
     WHERE n.nspname = 'tenure'
     UNION
    SELECT 'default rights of ' || d.defaclobjtype::text,
           format('of %s: %s', d.defaclrole::regrole, ARRAY(SELECT r::text FROM unnest(d.defaclacl) AS r ORDER BY 1))
      FROM pg_default_acl d
     WHERE d.defaclnamespace = 'tenure'::regnamespace
     UNION
    -- Tables, views and sequences.
    SELECT format('%s %s', CASE r.relkind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' WHEN 'p' THEN 'partitioned table'
                                          WHEN 'r' THEN 'table' ELSE r.relkind::text END, r.name),
           concat_ws('; ',
               'persistence ' || r.relpersistence::text, 'options ' || r.reloptions::text,
               'options of its toast table ' || (SELECT t.reloptions::text FROM pg_class t WHERE t.oid = r.reltoastrelid),
               'access ' || (SELECT a.amname FROM pg_am a WHERE a.oid = r.relam),
               'tablespace ' || nullif(r.reltablespace, 0), 'identity of replicas ' || nullif(r.relreplident, 'd')::text,
               CASE WHEN r.relrowsecurity OR r.relforcerowsecurity THEN 'row security' END,
               'partitioned by ' || pg_get_partkeydef(r.oid),
               (SELECT 'partition of ' || i.inhparent::regclass FROM pg_inherits i WHERE i.inhrelid = r.oid),
               CASE WHEN r.relispartition AND r.name NOT LIKE '%\_DAY' THEN pg_get_expr(r.relpartbound, r.oid) END,
               'rights ' || ARRAY(SELECT a::text FROM unnest(coalesce(r.relacl, acldefault(
                                         CASE r.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", r.relowner))) AS a
                                   ORDER BY 1)::text,
               CASE r.relkind WHEN 'v' THEN pg_get_viewdef(r.oid) END,
               CASE r.relkind WHEN 'S' THEN
                    (SELECT format('%s from %s by %s, %s to %s, cache %s, cycle %s, of %s.%s', s.seqtypid::regtype, s.seqstart,
                                   s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle, d.refobjid::regclass, a.attname)
                       FROM pg_sequence s
                       LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = r.oid
                                            AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0
                       LEFT JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                      WHERE s.seqrelid = r.oid) END,
               'comment ' || obj_description(r.oid, 'pg_class'))
      FROM relation r
     WHERE r.relkind NOT IN ('i', 'I', 't')
     UNION
    SELECT format('column %s.%s', r.name, a.attname),
           concat_ws('; ',
               'number ' || a.attnum, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
               'default ' || pg_get_expr(d.adbin, d.adrelid), 'identity ' || nullif(a.attidentity, '')::text,
               'generated ' || nullif(a.attgenerated, '')::text,
               'collation ' || (SELECT c.collname FROM pg_collation c WHERE c.oid = a.attcollation),
               'storage ' || a.attstorage::text, 'compression ' || nullif(a.attcompression, '')::text,
               -- Postgres 17 has NULL where earlier ones have -1.
               'statistics ' || nullif(a.attstattarget, -1), 'options ' || a.attoptions::text,
               CASE WHEN a.attinhcount > 0 THEN 'inherited' END,
               'rights ' || ARRAY(SELECT x::text FROM unnest(a.attacl) AS x ORDER BY 1)::text,
               'comment ' || col_description(r.oid, a.attnum))
      FROM relation r
      JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
     WHERE r.relkind NOT IN ('i', 'I', 't', 'S')
     UNION
    SELECT format('constraint %s of %s', regexp_replace(c.conname, '_[0-9]{8}(?=$|_)', '_DAY'), coalesce(r.name, 'a type')),
           concat_ws('; ', pg_get_constraintdef(c.oid), CASE WHEN NOT c.convalidated THEN 'not validated' END,
                     CASE WHEN NOT c.conislocal THEN 'inherited'
                          -- Of a partition, this says whether it was attached or created as one.
                          WHEN c.connoinherit THEN 'not to be inherited' END)
      FROM pg_constraint c
      LEFT JOIN relation r ON r.oid = c.conrelid
     -- A constraint trigger stands among the triggers; from Postgres 18 on, NOT NULL has a constraint, too.
     WHERE c.connamespace = 'tenure'::regnamespace AND c.contype NOT IN ('t', 'n')
     UNION
    -- Indexes. Of a partition: by the index of which it is a part, without its own name.
    SELECT CASE WHEN p.name IS NULL THEN format('index %s of %s', i.name, t.name)
                ELSE format('index of %s in %s', t.name, p.name) END,
           concat_ws('; ',
               CASE WHEN p.name IS NULL THEN pg_get_indexdef(i.oid)
                    ELSE CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END
                         || substring(pg_get_indexdef(i.oid) FROM ' USING .*') END,
               CASE WHEN NOT x.indisvalid THEN 'not valid' END, CASE WHEN NOT x.indisready THEN 'not ready' END,
               CASE WHEN x.indisclustered THEN 'clustered' END, CASE WHEN x.indisreplident THEN 'identity of replicas' END,
               'tablespace ' || nullif(i.reltablespace, 0), 'comment ' || obj_description(i.oid, 'pg_class'))
      FROM relation i
      JOIN pg_index x ON x.indexrelid = i.oid
      JOIN relation t ON t.oid = x.indrelid
      LEFT JOIN pg_inherits h ON h.inhrelid = i.oid
      LEFT JOIN relation p ON p.oid = h.inhparent
     UNION
    SELECT format('trigger %s of %s', t.tgname, r.name), pg_get_triggerdef(t.oid) || '; enabled ' || t.tgenabled::text
      FROM pg_trigger t
      JOIN relation r ON r.oid = t.tgrelid
     WHERE NOT t.tgisinternal
     UNION
    SELECT format('rule %s of %s', w.rulename, r.name), pg_get_ruledef(w.oid)
      FROM pg_rewrite w
      JOIN relation r ON r.oid = w.ev_class
     WHERE w.rulename <> '_RETURN'
     UNION
    SELECT format('policy %s of %s', p.polname, r.name),
           concat_ws('; ', p.polcmd, p.polpermissive, p.polroles::regrole[]::text, pg_get_expr(p.polqual, p.polrelid),
                     pg_get_expr(p.polwithcheck, p.polrelid))
      FROM pg_policy p
      JOIN relation r ON r.oid = p.polrelid
     UNION
    SELECT format('statistics %s', s.stxname), pg_get_statisticsobjdef(s.oid)
      FROM pg_statistic_ext s
     WHERE s.stxnamespace = 'tenure'::regnamespace
     UNION
    -- Types of their own: neither those of tables nor arrays of such.
    SELECT format('type %s', t.typname),
           concat_ws('; ', t.typtype, nullif(t.typbasetype, 0)::regtype,
                     (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
      FROM pg_type t
      LEFT JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.typnamespace = 'tenure'::regnamespace AND t.typcategory <> 'A' AND (c.oid IS NULL OR c.relkind = 'c')
     UNION
    -- pg_get_functiondef has the clauses SET and SECURITY DEFINER, too; the rest is said apart.
    SELECT format('function %s(%s)', f.proname, pg_get_function_identity_arguments(f.oid)),
           concat_ws('; ',
               CASE WHEN f.prokind IN ('f', 'p') THEN pg_get_functiondef(f.oid) ELSE f.prokind::text END,
               'security definer ' || f.prosecdef,
               'rights ' || ARRAY(SELECT a::text FROM unnest(coalesce(f.proacl, acldefault('f', f.proowner))) AS a
                                   ORDER BY 1)::text,
               'comment ' || obj_description(f.oid, 'pg_proc'))
      FROM pg_proc f
     WHERE f.pronamespace = 'tenure'::regnamespace
     UNION
    -- What `tenure migrate` has put into tables.
    SELECT 'rows of turns', string_agg(turn, ', ' ORDER BY turn) FROM tenure.turns
     UNION
    SELECT 'rows of scanner_state', count(*)::text FROM tenure.scanner_state
     UNION
    SELECT 'rows of gateway_keys', string_agg(format('%s: %s bytes', id, octet_length(key)), ', ') FROM tenure.gateway_keys
)
SELECT what, definition FROM found ORDER BY what COLLATE "C", definition COLLATE "C"
