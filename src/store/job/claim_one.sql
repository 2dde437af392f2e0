-- claim_one: by one id: in a third of the time, when a worker is idle and every part of a millisecond shows.
 WHERE (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
   AND j.id = $1
