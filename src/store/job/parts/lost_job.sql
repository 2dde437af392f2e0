-- lost_job: the columns of a locked job whose attempt is lost. The statement adds error, category, path, reason and
-- recovered_by.
           0 AS ord, 'lost' AS verdict, NULL::float8 AS delay_s,
           statement_timestamp() - j.last_activity_at AS silence,
-- include job/parts/locked_job.sql
