-- error_group: what the dead letters of one group have in common: a hash of the queue, the kind, the category, and
-- `error_line` without its numbers, ids and quoted texts. None of these holds a line break.
       left(encode(sha256(convert_to(concat_ws(E'\n', queue, kind, category, regexp_replace(
-- include read/parts/error_line.sql
       , '"[^"]*"|''[^'']*''|\m0x[0-9a-f]+\M|\m[0-9a-f]{8}[0-9a-f-]*\M|[0-9]+', '#', 'gi')), 'UTF8')), 'hex'), 12)
