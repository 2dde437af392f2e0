-- error_group: what the errors of one group have in common: a hash of `error_line` without its numbers, ids and quoted
-- texts.
       left(encode(sha256(convert_to(regexp_replace(
-- include read/parts/error_line.sql
       , '"[^"]*"|''[^'']*''|\m0x[0-9a-f]+\M|\m[0-9a-f]{8}[0-9a-f-]*\M|[0-9]+', '#', 'gi'), 'UTF8')), 'hex'), 12)
