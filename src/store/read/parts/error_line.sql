-- error_line: the line of `last_error` that says what went wrong: the last one of a Python traceback, and the first one
-- of any other text. A command's error holds its last lines only, so a traceback may lack its beginning.
       (CASE WHEN last_error ~ 'Traceback \(most recent call last\)|File "[^"\n]*", line [0-9]'
             THEN left(ltrim(regexp_replace(rtrim(right(last_error, 4000), E' \t\r\n'), '^.*\n', '')), 300)
             ELSE left(rtrim(split_part(ltrim(left(last_error, 4000), E' \t\r\n'), E'\n', 1)), 300)
        END)
