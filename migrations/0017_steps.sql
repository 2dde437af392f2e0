-- Steps: what a handler has recorded of its work outside SQL, so that a later attempt goes on after it.

-- What an effect is: `step`, `sleep`; NULL for an effect of `once`. No CHECK: it would read the whole table.
ALTER TABLE tenure.effects ADD COLUMN step_kind text;
-- When the step began, by the database's clock; its end is `created_at`.
ALTER TABLE tenure.effects ADD COLUMN began_at timestamptz;
-- The end of a sleep.
ALTER TABLE tenure.effects ADD COLUMN wakes_at timestamptz;
