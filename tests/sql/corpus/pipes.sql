FROM hav |> WHERE v > 1 |> AGGREGATE SUM(v) AS s GROUP BY k;
-- slow
FROM hav |> AGGREGATE COUNT(*) AS n, MAX(v) AS m;
