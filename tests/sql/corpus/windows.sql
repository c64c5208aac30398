SELECT k, v, SUM(v) OVER (PARTITION BY k ORDER BY v) AS s FROM hav;
SELECT k, SUM(SUM(v)) OVER () AS total, SUM(v) AS s FROM hav GROUP BY k;
SELECT k, SUM(v) AS s FROM hav GROUP BY k QUALIFY ROW_NUMBER() OVER (ORDER BY s DESC) = 1;
SELECT k, MAX(v) OVER w AS m FROM hav WINDOW w AS (PARTITION BY k);
SELECT t.*, round(AVG(earnings) OVER w / 2 + t.earnings, 3) AS r, row_number() OVER (PARTITION BY course ORDER BY earnings DESC) AS n, COUNT(*) FILTER (WHERE year > 2012) OVER () FROM courseSales t WINDOW w AS (PARTITION BY course ORDER BY earnings DESC ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) ORDER BY t.earnings;
-- slow
SELECT course, SUM(earnings) OVER (PARTITION BY course ORDER BY year) AS s FROM courseSales QUALIFY s > 10000 AND earnings < 48000 ORDER BY s, course;
SELECT explode(array(1, year)) AS e, COUNT(*) OVER () AS c FROM courseSales;
SELECT CASE WHEN SUM(earnings) OVER w > 20000 THEN course ELSE CAST(year AS STRING) END AS z FROM courseSales WINDOW w AS (ORDER BY make_date(year, 1, 1) RANGE BETWEEN INTERVAL '1' YEAR PRECEDING AND CURRENT ROW);
SELECT a.year, SUM(b.earnings) OVER (PARTITION BY a.course ORDER BY b.earnings, a.earnings) AS s FROM courseSales a JOIN courseSales b ON a.year = b.year;
WITH c AS (SELECT course, SUM(earnings) AS s FROM courseSales GROUP BY course) SELECT course, s, AVG(s) OVER (ORDER BY course ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS r FROM c UNION ALL SELECT k, v, MIN(v) OVER (ORDER BY v DESC RANGE BETWEEN 1 + 1 PRECEDING AND 1 PRECEDING) FROM hav;
SELECT year AS earnings, SUM(earnings) OVER (ORDER BY earnings, course) AS s FROM courseSales;
SELECT k, SUM(v) AS s, RANK() OVER (ORDER BY SUM(v) DESC) AS r FROM hav GROUP BY k;
SELECT course, year, AVG(earnings) OVER (PARTITION BY course ORDER BY year ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS a FROM courseSales;
SELECT DISTINCT course, MAX(earnings) OVER (PARTITION BY course) AS m FROM courseSales WHERE year IN (SELECT v + 2010 FROM hav UNION ALL SELECT 2012) ORDER BY m DESC;
SELECT named_struct('x', v, 'y', 5) AS q, SUM(v) OVER (ORDER BY v) AS t FROM hav QUALIFY q.x = q.y;
SELECT v * 2 AS end, end + SUM(v) OVER u AS z, MAX(v) OVER u AS m, MAX(v) OVER U AS n FROM (SELECT k, v, 100 + v AS end FROM hav) WINDOW u AS (PARTITION BY k), U AS (ORDER BY v);
SELECT t.*, SUM(v) OVER (ORDER BY v) :: DOUBLE AS s FROM hav t QUALIFY s > v AND row_number() OVER (PARTITION BY k ORDER BY v) = 1;
SELECT AVG(rand()) OVER () = AVG(rand()) OVER () AS is_same FROM hav;
