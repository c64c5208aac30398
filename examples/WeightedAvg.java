package com.acme;

/** The weighted average of the README, in Java. */
public class WeightedAvg {
  public static class Accumulator {
    public long sum;
    public long count;
  }

  public Accumulator createAccumulator() {
    return new Accumulator();
  }

  public void accumulate(Accumulator acc, long value, int weight) {
    acc.sum += value * weight;
    acc.count += weight;
  }

  public void retract(Accumulator acc, long value, int weight) {
    acc.sum -= value * weight;
    acc.count -= weight;
  }

  public void merge(Accumulator acc, Accumulator other) {
    acc.sum += other.sum;
    acc.count += other.count;
  }

  public Long getValue(Accumulator acc) {
    return acc.count == 0 ? null : Long.valueOf(acc.sum / acc.count);
  }
}
