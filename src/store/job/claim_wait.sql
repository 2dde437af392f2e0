-- claim_wait: by a list of ids; who has locked one of the rows is waited for, for a moment.
 WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
   AND j.id = ANY ($1::uuid[])
