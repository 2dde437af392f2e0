-- complete_wait: this verdict ends a transaction; it is waited for.
       FOR UPDATE OF j
