SELECT dept_id, SUM(salary), MAX_BY(emp_name, salary), COLLECT_SET(hiredate) AS c FROM emp GROUP BY dept_id;
-- slow
SELECT SUM(salary) AS s, APPROX_COUNT_DISTINCT(dept_id) AS d FROM emp;
