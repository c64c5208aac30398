FROM hav |> WHERE v > 1 |> AGGREGATE SUM(v) AS s GROUP BY k;
-- slow
FROM hav |> AGGREGATE COUNT(*) AS n, MAX(v) AS m;
FROM hav LATERAL VIEW explode(array(v, 1)) t AS e SELECT k, SUM(e) AS s WHERE v > 1 GROUP BY k;
TABLE hav |> AGGREGATE SUM(v) AS s GROUP BY k |> WHERE s > 2;
