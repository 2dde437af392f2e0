-- complete_taken: what was locked goes.
), done AS (
    DELETE FROM tenure.jobs j
     USING mine
     WHERE j.id = mine.id
    RETURNING mine.output, j.*
)
