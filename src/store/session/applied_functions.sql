-- applied_functions: the functions that `migrate` has applied and that are still there, each with the checksum of its text.
SELECT f.name, f.checksum
  FROM tenure.functions f
 WHERE EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname = f.name)
