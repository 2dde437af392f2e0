-- wake_lanes_ahead: let each lane be looked at whose next look lies ahead; the clock has stepped back.
--
-- See migrations/functions/lanes/wake_lanes_ahead.sql.
SELECT tenure.wake_lanes_ahead()
