-- complete_taken: the locked rows leave the live jobs.
), done AS (
    DELETE FROM tenure.jobs j
     USING mine
     WHERE j.id = mine.id
       AND j.id = ANY (ARRAY(SELECT id FROM mine))
    RETURNING mine.output, j.*
)
