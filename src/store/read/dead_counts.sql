-- dead_counts: the number of dead letters by queue, kind and category.
SELECT queue, kind, category, count(*) AS jobs, min(died_at) AS oldest, max(died_at) AS newest
  FROM tenure.dead_letter_jobs
 GROUP BY queue, kind, category
 ORDER BY jobs DESC, queue, kind, category
