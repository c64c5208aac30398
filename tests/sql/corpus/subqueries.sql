SELECT * FROM emp e WHERE salary >= (SELECT AVG(i.salary) FROM emp i WHERE i.dept_id = e.dept_id);
SELECT dept_name, SUM(salary) AS s, COUNT(*) FROM dept LEFT JOIN emp USING (dept_id) GROUP BY dept_name;
WITH t AS (WITH u AS (SELECT * FROM emp WHERE id > 100) SELECT dept_id, AVG(salary) AS a FROM u GROUP BY 1) SELECT MIN(a), MAX(a) FROM t;
SELECT dept_id, SUM(salary) AS s FROM emp GROUP BY dept_id UNION ALL SELECT -1, SUM(salary) FROM emp;
-- slow
SELECT * FROM emp WHERE salary > (SELECT AVG(salary) FROM emp);
SELECT d.dept_name, x.s FROM dept d JOIN (SELECT dept_id, SUM(salary) AS s FROM emp GROUP BY dept_id) x ON x.dept_id = d.dept_id;
SELECT state, AVG(salary) FROM emp e INNER JOIN dept d ON e.dept_id = d.dept_id WHERE e.id > 100 GROUP BY d.state;
SELECT dept_id, (SELECT MAX(salary) FROM emp) - MAX(salary) AS gap FROM emp GROUP BY dept_id;
SELECT dept_id FROM dept WHERE EXISTS (SELECT 1 FROM emp WHERE emp.dept_id = dept.dept_id HAVING COUNT(*) > 1);
SELECT dept_id FROM dept WHERE dept_id IN (SELECT dept_id FROM emp GROUP BY dept_id HAVING SUM(salary) > 300);
WITH t AS (SELECT dept_id, SUM(salary) AS s FROM emp GROUP BY dept_id), u AS (SELECT MAX(s) AS m FROM t) SELECT * FROM t JOIN u ON t.s = u.m;
(SELECT a, SUM(b) AS s FROM testData GROUP BY a) EXCEPT SELECT 1, 3L ORDER BY a;
SELECT s FROM (SELECT SUM(b) AS s FROM testData GROUP BY a) GROUP BY s HAVING COUNT(*) > 1;
SELECT a FROM (SELECT a, SUM(b) AS s FROM testData GROUP BY a) WHERE s = (SELECT MAX(s) FROM (SELECT SUM(b) AS s FROM testData GROUP BY a));
SELECT e.dept_id, m.top FROM emp e, LATERAL (SELECT MAX(d.dept_name) AS top FROM dept d WHERE d.dept_id = e.dept_id) m;
SELECT word, COUNT(*) AS n FROM emp LATERAL VIEW explode(split(emp_name, ' ')) x AS word GROUP BY word;
