/** Marks what scrolls across with `data-more` while there is more to the right of what is seen. */
export function fading(element: HTMLElement): () => void {
  const look = (): void => {
    element.toggleAttribute("data-more", element.scrollWidth - element.clientWidth - element.scrollLeft > 1);
  };
  const sizes = new ResizeObserver(look);
  sizes.observe(element);
  for (const child of element.children) sizes.observe(child);
  element.addEventListener("scroll", look, { passive: true });
  return () => {
    sizes.disconnect();
    element.removeEventListener("scroll", look);
  };
}
