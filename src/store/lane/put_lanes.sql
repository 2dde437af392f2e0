-- put_lanes: give a queue lanes, or change their settings.
--
--   $1 queue  $2 jobs of a lane that may run  $3 tokens a second of a lane  $4 its most tokens  $5, $6 the same of the queue
--   $7 whether lanes take turns  $8 whether lanes are ordered  $9 how long to wait for each lock, for example '300ms'
--
-- See tenure.put_lanes in migrations/0015_lanes.sql.
SELECT tenure.put_lanes($1, $2, $3, $4, $5, $6, $7, $8, $9)
