SELECT * FROM courseSales PIVOT (SUM(earnings) AS s, AVG(earnings) AS a FOR year IN (2012, 2013));
-- slow
SELECT * FROM (SELECT year, course, earnings FROM courseSales) PIVOT (SUM(earnings) FOR course IN ('dotNET', 'Java'));
SELECT * FROM (SELECT course, SUM(earnings) AS e, year FROM courseSales GROUP BY course, year) PIVOT (MAX(e) FOR year IN (2012));
