SELECT course, year, SUM(earnings), GROUPING(course), GROUPING_ID(course, year) FROM courseSales GROUP BY CUBE(course, year);
-- slow
SELECT a + b, b, SUM(a - b) FROM testData GROUP BY a + b, b WITH CUBE;
SELECT course, year, SUM(earnings) FROM courseSales GROUP BY ROLLUP(course, year) ORDER BY course, year;
SELECT course, SUM(earnings) FROM courseSales GROUP BY course, year GROUPING SETS(course, year);
SELECT course, SUM(earnings) AS sum FROM courseSales GROUP BY course, earnings GROUPING SETS((), (course), (course, earnings));
SELECT course, year, COUNT(DISTINCT earnings) AS n FROM courseSales GROUP BY ROLLUP(course), year;
SELECT a, b, COUNT(1) AS n FROM testData GROUP BY a, CUBE(a, b), ROLLUP(b);
SELECT COUNT(*) AS n, GROUPING_ID() AS g FROM testData WHERE a > 100 GROUP BY GROUPING SETS (());
