SELECT * FROM courseSales PIVOT (SUM(earnings) AS s, AVG(earnings) AS a FOR year IN (2012, 2013));
-- slow
SELECT * FROM (SELECT year, course, earnings FROM courseSales) PIVOT (SUM(earnings) FOR course IN ('dotNET', 'Java'));
SELECT * FROM (SELECT course, SUM(earnings) AS e, year FROM courseSales GROUP BY course, year) PIVOT (MAX(e) FOR year IN (2012));
SELECT * FROM courseSales PIVOT (ceil(SUM(earnings)) AS s, AVG(earnings) + 1 AS a FOR (course, year) IN (('dotNET', 2012) AS d, ('Java', 2013) AS j));
SELECT * FROM (SELECT course, year, array(earnings) AS e FROM courseSales) PIVOT (MIN(e) FOR course IN ('dotNET', 'Java'));
SELECT SUM(one) AS s FROM hav PIVOT (SUM(v) FOR k IN ('one' AS one));
