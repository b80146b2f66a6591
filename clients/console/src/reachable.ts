/** What scrolls can be scrolled by keys: an element takes the focus while it does not fit its frame. */
export function reachable(element: HTMLElement): () => void {
  const look = () => {
    if (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  };
  const observer = new ResizeObserver(look);
  observer.observe(element);
  for (const child of element.children) observer.observe(child);
  return () => observer.disconnect();
}
