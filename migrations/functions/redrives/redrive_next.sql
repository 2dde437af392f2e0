-- Redrives the next jobs of a redrive, at most `most` of those after the first `gone_before`. Returns how many it
-- redrove, and how many were missing, because they were no dead letters any more, or because Postgres refuses to write
-- them: such a one stays a dead letter.
--
-- Called by `tend_redrive` alone, with its rights and its settings; the redrive's row is locked. `redrive` waits for
-- a dead letter that another transaction has locked.
CREATE OR REPLACE FUNCTION tenure.redrive_next(of uuid, gone_before bigint, most bigint, OUT redriven bigint,
                                               OUT missing bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    places       bigint[];
    ids          uuid[];
    redriven_ids uuid[];
    one          uuid;
BEGIN
    SELECT array_agg(n.place ORDER BY n.place), array_agg(n.job_id ORDER BY n.place) INTO places, ids
      FROM (SELECT o.place, o.job_id FROM tenure.redrive_jobs o
             WHERE o.redrive_id = of AND o.place > gone_before
             ORDER BY o.place LIMIT most) n;
    IF ids IS NULL THEN
        redriven := 0;
        missing := 0;
        RETURN;
    END IF;
    BEGIN
        redriven_ids := ARRAY(SELECT tenure.redrive(ids));
    EXCEPTION
        WHEN OTHERS THEN
            -- Of the statement, of the server, or of somebody in the way: of no single job.
            IF left(SQLSTATE, 2) IN ('40', '42', '53', '55', '57', '58') THEN
                RAISE;
            END IF;
            FOREACH one IN ARRAY ids LOOP
                BEGIN
                    redriven_ids := redriven_ids || ARRAY(SELECT tenure.redrive(ARRAY[one]));
                EXCEPTION
                    WHEN OTHERS THEN
                        IF left(SQLSTATE, 2) IN ('40', '42', '53', '55', '57', '58') THEN
                            RAISE;
                        END IF;
                        RAISE WARNING 'tenure: dead letter % cannot be redriven: %', one, SQLERRM;
                END;
            END LOOP;
    END;
    UPDATE tenure.redrive_jobs o SET redriven_at = clock_timestamp()
     WHERE o.redrive_id = of AND o.place = ANY (places) AND o.job_id = ANY (redriven_ids);
    redriven := coalesce(cardinality(redriven_ids), 0);
    missing := cardinality(ids) - redriven;
END $$;

REVOKE ALL ON FUNCTION tenure.redrive_next(uuid, bigint, bigint) FROM PUBLIC;
