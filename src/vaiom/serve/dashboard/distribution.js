// The distribution of the next log return from what the service sends of it: linear between knots, generalised Pareto
// beyond them.
const survival = (tail, excess) => tail.shape === 0
  ? Math.exp(-excess / tail.scale)
  : Math.exp(-Math.log1p(tail.shape * excess / tail.scale) / tail.shape);

export function cdf(distribution, x) {
  const { knots, cumulative, lower, upper } = distribution, last = knots.length - 1;
  if (x < knots[0]) return cumulative[0] * survival(lower, knots[0] - x);
  if (x > knots[last]) return 1 - (1 - cumulative[last]) * survival(upper, x - knots[last]);
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (knots[middle] <= x) low = middle; else high = middle;
  }
  const share = (x - knots[low]) / (knots[high] - knots[low]);
  return cumulative[low] + share * (cumulative[high] - cumulative[low]);
}

export const above = (distribution, x) => 1 - cdf(distribution, Math.abs(x));
export const below = (distribution, x) => cdf(distribution, -Math.abs(x));
