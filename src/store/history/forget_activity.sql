-- forget_activity: delete the counts of minutes more than a day ago.
DELETE FROM tenure.activity WHERE minute < statement_timestamp() - interval '1 day'
