-- id_bounds: which ids job_filter.sql allows; its parameters are $5, $6 and $8.
--
-- An id is time: a bound on the age bounds the id, too, so that a large history is read from there on, by its primary
-- key, and only as far as needed. The bound on the id is a day wider: producers' clocks make the ids, and the ids of
-- submissions are older than their rows. CASE and coalesce, not OR: an index can serve the one and not the other.
       id <= CASE WHEN $5::float8 IS NULL THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
                  ELSE rpad(lpad(to_hex(greatest(0, (extract(epoch FROM statement_timestamp()
                            - $5 * interval '1 second' + interval '1 day') * 1000)::bigint)), 12, '0'), 32, 'f')::uuid
             END
   AND id >= CASE WHEN $6::float8 IS NULL THEN '00000000-0000-0000-0000-000000000000'
                  ELSE rpad(lpad(to_hex(greatest(0, (extract(epoch FROM statement_timestamp()
                            - $6 * interval '1 second' - interval '1 day') * 1000)::bigint)), 12, '0'), 32, '0')::uuid
             END
   AND id < coalesce($8::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
