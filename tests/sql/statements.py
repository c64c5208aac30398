"""Statements of Spark's own SQL tests (group-by, having, grouping sets, pivot, subqueries, windows), with its aggregates.

`ours` replaces the aggregates by functions of foldflight with the same meaning. Each statement runs both ways.
"""

from __future__ import annotations

import re

from tests.sql.conftest import NAMES

GROUP_BY = """
SELECT COUNT(a), COUNT(b) FROM testData;
SELECT a, COUNT(b) FROM testData GROUP BY a;
SELECT COUNT(a), COUNT(b) FROM testData GROUP BY a;
SELECT 'foo', COUNT(a) FROM testData GROUP BY 1;
SELECT 'foo', MAX(struct(a).col1) FROM testData WHERE a = 0 GROUP BY 1;
SELECT a + b, COUNT(b) FROM testData GROUP BY a + b;
SELECT a + 1 + 1, COUNT(b) FROM testData GROUP BY a + 1;
SELECT COUNT(DISTINCT b), COUNT(DISTINCT b + a) FROM testData;
SELECT a AS k, COUNT(b) FROM testData GROUP BY k;
SELECT a AS k, COUNT(b) FROM testData GROUP BY k HAVING k > 1;
SELECT k AS a, COUNT(v) FROM hav GROUP BY a;
SELECT a, COUNT(1) FROM testData WHERE false GROUP BY a;
SELECT COUNT(1) FROM testData WHERE false;
SELECT 1 FROM (SELECT COUNT(1) AS c FROM testData WHERE false) t;
SELECT 1 FROM (SELECT 1 AS z, MIN(a) AS m FROM testData WHERE false) b WHERE z = 1;
SELECT a, MIN(b), MAX(b), COUNT(*) FROM testData GROUP BY a ORDER BY MAX(b), a NULLS FIRST;
SELECT a, SUM(b) AS s FROM testData GROUP BY a ORDER BY s DESC NULLS LAST, a LIMIT 2;
SELECT MAX(a + b) * 2 - MIN(a) AS c FROM testData;
SELECT CASE WHEN a > 1 THEN 'big' ELSE 'small' END AS size, SUM(b) FROM testData GROUP BY CASE WHEN a > 1 THEN 'big' ELSE 'small' END;
SELECT a, b, SUM(b) FROM testData GROUP BY ALL;
SELECT a % 2, SUM(b) + COUNT(*) FROM testData GROUP BY ALL;
SELECT t.a, SUM(t.b) FROM testData AS t GROUP BY t.a;
SELECT a, SUM(b) FROM testData t GROUP BY t.a HAVING t.a IS NOT NULL;
SELECT a, COUNT(*) FILTER (WHERE b > 1) AS c FROM testData GROUP BY a;
SELECT SUM(DISTINCT a) FILTER (WHERE b > 1), AVG(a) FILTER (WHERE b IS NULL) FROM testData;
SELECT dept_id, SUM(salary) FILTER (WHERE hiredate > date '2003-01-01') AS s FROM emp GROUP BY dept_id;
SELECT dept_id, COUNT(DISTINCT emp_name) AS n, COUNT(DISTINCT emp_name, hiredate) AS m FROM emp GROUP BY dept_id;
SELECT EVERY(salary > 150) AS e, SOME(salary > 350) AS s FROM emp GROUP BY dept_id;
SELECT STDDEV_SAMP(salary) AS s, VAR_POP(salary) AS v FROM emp;
SELECT year(hiredate) AS y, AVG(salary) FROM emp GROUP BY year(hiredate) HAVING COUNT(*) > 1;
SELECT upper(emp_name) AS n, SUM(salary) FROM emp GROUP BY emp_name;
SELECT DISTINCT SUM(b) AS s FROM testData GROUP BY a;
SELECT a, SUM(b) AS s FROM testData GROUP BY a HAVING s > 1 AND SUM(b) < 4;
SELECT a, SUM(b) AS s, ROUND(AVG(b), 1) AS r FROM testData GROUP BY 1 ORDER BY 1, 2 DESC;
SELECT /*+ COALESCE(1) */ a, /* a comment; with ( */ SUM(b) -- the end ' of it
    FROM testData GROUP BY a;
SELECT `a.b`, SUM(`from`) AS `s.s`, MAX(`Größe`) AS m FROM odd GROUP BY `a.b`;
SELECT x, COUNT(*) AS n FROM odd GROUP BY x;
SELECT flag, SUM(x) AS s, MIN(x) AS m FROM odd GROUP BY flag;
SELECT concat('it''s ;', max(k)) AS t FROM hav;
"""

HAVING = """
SELECT k, SUM(v) FROM hav GROUP BY k HAVING SUM(v) > 2;
SELECT COUNT(k) FROM hav GROUP BY v + 1 HAVING v + 1 = 2;
SELECT MIN(t.v) AS m FROM (SELECT * FROM hav WHERE v > 0) t HAVING COUNT(1) > 0;
SELECT a + b AS c FROM VALUES (1L, 2L) AS T(a, b) GROUP BY a + b HAVING a + b > 1 AND SUM(a) > 0;
SELECT c1 FROM VALUES (1, 2) AS t(c1, c2) GROUP BY c1 HAVING MAX(c2) = 2 ORDER BY c1;
SELECT k FROM hav GROUP BY k HAVING MAX(v) BETWEEN 2 AND 4;
SELECT k, v, SUM(v) FROM hav GROUP BY GROUPING SETS ((k), (v), ()) HAVING SUM(v) > 1;
SELECT SUM(a) AS b, '2020-01-01' AS fake FROM VALUES (1, 10), (2, 20) AS T(a, b) GROUP BY b HAVING b > 10;
"""

SETS = """
SELECT a + b, b, SUM(a - b) FROM testData GROUP BY a + b, b WITH CUBE;
SELECT course, year, SUM(earnings) FROM courseSales GROUP BY ROLLUP(course, year) ORDER BY course, year;
SELECT course, year, SUM(earnings), GROUPING(course), GROUPING_ID(course, year) FROM courseSales GROUP BY CUBE(course, year);
SELECT course, SUM(earnings) FROM courseSales GROUP BY course, year GROUPING SETS(course, year);
SELECT course, SUM(earnings) AS sum FROM courseSales GROUP BY course, earnings GROUPING SETS((), (course), (course, earnings));
SELECT course, year, COUNT(DISTINCT earnings) AS n FROM courseSales GROUP BY ROLLUP(course), year;
"""

PIVOT = """
SELECT * FROM (SELECT year, course, earnings FROM courseSales) PIVOT (SUM(earnings) FOR course IN ('dotNET', 'Java'));
SELECT * FROM courseSales PIVOT (SUM(earnings) AS s, AVG(earnings) AS a FOR year IN (2012, 2013));
SELECT * FROM (SELECT course, SUM(earnings) AS e, year FROM courseSales GROUP BY course, year) PIVOT (MAX(e) FOR year IN (2012));
"""

SUBQUERIES = """
SELECT * FROM emp WHERE salary > (SELECT AVG(salary) FROM emp);
SELECT * FROM emp e WHERE salary >= (SELECT AVG(i.salary) FROM emp i WHERE i.dept_id = e.dept_id);
SELECT d.dept_name, x.s FROM dept d JOIN (SELECT dept_id, SUM(salary) AS s FROM emp GROUP BY dept_id) x ON x.dept_id = d.dept_id;
SELECT dept_name, SUM(salary) AS s, COUNT(*) FROM dept LEFT JOIN emp USING (dept_id) GROUP BY dept_name;
SELECT state, AVG(salary) FROM emp e INNER JOIN dept d ON e.dept_id = d.dept_id WHERE e.id > 100 GROUP BY d.state;
SELECT dept_id, (SELECT MAX(salary) FROM emp) - MAX(salary) AS gap FROM emp GROUP BY dept_id;
SELECT dept_id FROM dept WHERE EXISTS (SELECT 1 FROM emp WHERE emp.dept_id = dept.dept_id HAVING COUNT(*) > 1);
SELECT dept_id FROM dept WHERE dept_id IN (SELECT dept_id FROM emp GROUP BY dept_id HAVING SUM(salary) > 300);
WITH t AS (SELECT dept_id, SUM(salary) AS s FROM emp GROUP BY dept_id), u AS (SELECT MAX(s) AS m FROM t) SELECT * FROM t JOIN u ON t.s = u.m;
WITH t AS (WITH u AS (SELECT * FROM emp WHERE id > 100) SELECT dept_id, AVG(salary) AS a FROM u GROUP BY 1) SELECT MIN(a), MAX(a) FROM t;
SELECT dept_id, SUM(salary) AS s FROM emp GROUP BY dept_id UNION ALL SELECT -1, SUM(salary) FROM emp;
(SELECT a, SUM(b) AS s FROM testData GROUP BY a) EXCEPT SELECT 1, 3L ORDER BY a;
SELECT s FROM (SELECT SUM(b) AS s FROM testData GROUP BY a) GROUP BY s HAVING COUNT(*) > 1;
SELECT a FROM (SELECT a, SUM(b) AS s FROM testData GROUP BY a) WHERE s = (SELECT MAX(s) FROM (SELECT SUM(b) AS s FROM testData GROUP BY a));
SELECT e.dept_id, m.top FROM emp e, LATERAL (SELECT MAX(d.dept_name) AS top FROM dept d WHERE d.dept_id = e.dept_id) m;
SELECT word, COUNT(*) AS n FROM emp LATERAL VIEW explode(split(emp_name, ' ')) x AS word GROUP BY word;
"""

WINDOWS = """
SELECT k, v, SUM(v) OVER (PARTITION BY k ORDER BY v) AS s FROM hav;
SELECT k, SUM(v) AS s, RANK() OVER (ORDER BY SUM(v) DESC) AS r FROM hav GROUP BY k;
SELECT k, SUM(v) AS s FROM hav GROUP BY k QUALIFY ROW_NUMBER() OVER (ORDER BY SUM(v) DESC) = 1;
SELECT k, SUM(SUM(v)) OVER () AS total, SUM(v) AS s FROM hav GROUP BY k;
SELECT k, MAX(v) OVER w AS m FROM hav WINDOW w AS (PARTITION BY k);
SELECT course, year, AVG(earnings) OVER (PARTITION BY course ORDER BY year ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS a FROM courseSales;
"""

PIPES = """
FROM hav |> WHERE v > 1 |> AGGREGATE SUM(v) AS s GROUP BY k;
FROM hav |> AGGREGATE COUNT(*) AS n, MAX(v) AS m;
"""

BESIDE = """
SELECT dept_id, SUM(salary), MAX_BY(emp_name, salary), COLLECT_SET(hiredate) AS c FROM emp GROUP BY dept_id;
SELECT SUM(salary) AS s, APPROX_COUNT_DISTINCT(dept_id) AS d FROM emp;
SELECT a AS k FROM testData GROUP BY a HAVING MIN(b) > 0 ORDER BY ANY_VALUE(a);
"""

REFUSED = """
SELECT a, COUNT(b) FROM testData;
SELECT a, b, SUM(b) FROM testData GROUP BY a;
SELECT a + 2, COUNT(b) FROM testData GROUP BY a + 1;
SELECT SUM(MAX(a)) FROM testData;
SELECT a FROM testData WHERE COUNT(b) > 1;
SELECT a AS k, COUNT(nope) FROM testData GROUP BY k;
SELECT COUNT(b) AS k FROM testData GROUP BY k;
SELECT a, SUM(b) FROM nowhere GROUP BY a;
SELECT a, SUM(b) FROM testData GROUP BY 3;
SELECT id FROM emp HAVING id > 1 AND SUM(id) > 1;
SELECT k, SUM(v) + 1 AS s1 FROM hav GROUP BY k HAVING SUM(v) > 0 ORDER BY SUM(v);
SELECT SUM(emp_name FROM emp;
"""

_TWINS = {"SOME": "my_some", "EVERY": "my_every", **{name.upper(): ours for name, ours in NAMES.items()}}


def statements(text: str) -> list[str]:
    """Return the statements of a text, one for each `;` at the end of a line."""
    return [each.strip() for each in re.split(r";\n", text) if each.strip()]


def ours(statement: str, only: str = "") -> str:
    """Return a statement with Spark's aggregates replaced by ours; `only` names one that is."""
    names = {only: _TWINS[only]} if only else _TWINS
    return re.sub(
        r"\b(" + "|".join(names) + r")\(", lambda found: names[found[1].upper()] + "(", statement, flags=re.IGNORECASE
    )
