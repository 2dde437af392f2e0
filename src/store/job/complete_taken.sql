-- complete_taken: what was locked goes.
), done AS (
    DELETE FROM tenure.jobs j
     USING mine
     WHERE j.id = mine.id
       AND j.id = ANY (ARRAY(SELECT id FROM mine))
    RETURNING mine.output, j.*
)
